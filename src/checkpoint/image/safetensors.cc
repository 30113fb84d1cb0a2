#include "checkpoint/image/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/crc/crc32.h"
#include "checkpoint/image/image_bytes.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100000000;  // stock readers take no more
constexpr std::string_view kBegin = R"({"__metadata__":{"phalanx.crc32":")";
constexpr std::string_view kInfoKey = "phalanx.info";
constexpr uint64_t kDigits = 8;
constexpr size_t kShownBytes = 200;

struct DataType {
  std::string_view name;
  uint64_t bytes;  // of an element
};
constexpr DataType kDataTypes[] = {
    {"F64", 8},     {"F32", 4},     {"F16", 2},     {"BF16", 2},        {"I64", 8},        {"I32", 4},  {"I16", 2},
    {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2},         {"U8", 1},         {"BOOL", 1}, {"C64", 8},
    {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}};

std::string Shown(std::string_view name) {
  std::string text(name.substr(0, kShownBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

// What the header says of one tensor. Offsets are those in the data.
struct Tensor {
  std::string name;
  uint64_t element_bytes = 0;  // 0: no known data type
  std::optional<uint64_t> elements;
  std::vector<uint64_t> offsets;
};

// Takes the header apart as it is read: nothing of it is kept but what belongs there.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Tensor> tensors;
  std::string info;
  std::string why;  // it is none

  bool null() override { return Refuse("holds null"); }
  bool boolean(bool) override { return Refuse("holds a truth value"); }
  bool number_integer(number_integer_t) override { return Refuse("holds a number below 0"); }
  bool number_float(number_float_t, const string_t&) override { return Refuse("holds a fraction"); }
  bool binary(binary_t&) override { return Refuse("holds bytes"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (in_ == In::kOffsets && tensors.back().offsets.size() < 2) {
      tensors.back().offsets.push_back(value);
      return true;
    }
    if (in_ != In::kShape) return Refuse("holds a number where none belongs");
    uint64_t product = 0;
    if (__builtin_mul_overflow(*tensors.back().elements, value, &product)) return Refuse("names too large a shape");
    tensors.back().elements = product;
    return true;
  }

  bool string(string_t& value) override {
    if (in_ == In::kMetadata) {
      if (key_ == kInfoKey) info = value;
      return true;
    }
    if (in_ != In::kTensor || key_ != "dtype") return Refuse("holds a text where none belongs");
    const auto* type = std::ranges::find(kDataTypes, std::string_view(value), &DataType::name);
    if (type == std::end(kDataTypes)) return Refuse("names the unknown data type " + Shown(value));
    tensors.back().element_bytes = type->bytes;
    return true;
  }

  bool start_object(size_t) override {
    switch (in_) {
      case In::kNothing:
        in_ = In::kRoot;
        return true;
      case In::kRoot:
        in_ = key_ == kHeaderRecord ? In::kMetadata : In::kTensor;
        if (in_ == In::kTensor) tensors.emplace_back().name = key_;
        return true;
      default:
        return Refuse("is nested too deeply");
    }
  }
  bool end_object() override {
    in_ = in_ == In::kRoot ? In::kNothing : In::kRoot;
    return true;
  }
  bool key(string_t& value) override {
    key_ = value;
    return true;
  }
  bool start_array(size_t) override {
    if (in_ != In::kTensor) return Refuse("holds a list where none belongs");
    Tensor& tensor = tensors.back();
    if (key_ == "shape" && !tensor.elements) {
      tensor.elements = 1;
      in_ = In::kShape;
      return true;
    }
    if (key_ != "data_offsets" || !tensor.offsets.empty()) return Refuse("holds a list where none belongs");
    in_ = In::kOffsets;
    return true;
  }
  bool end_array() override {
    in_ = In::kTensor;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return Refuse("is no JSON at its byte " + std::to_string(at));
  }

 private:
  enum class In { kNothing, kRoot, kMetadata, kTensor, kShape, kOffsets };

  bool Refuse(const std::string& what) {
    if (why.empty()) why = "its header " + what + (key_.empty() ? "" : ", near '" + Shown(key_) + "'");
    return false;
  }

  In in_ = In::kNothing;
  std::string key_;
};

// Empty: shape, data type and offsets are there, go together and lie within the data.
std::string WhyNoTensor(const Tensor& tensor, uint64_t data_bytes) {
  const std::string whose = "tensor '" + Shown(tensor.name) + "' ";
  if (tensor.element_bytes == 0 || !tensor.elements || tensor.offsets.size() != 2) {
    return whose + "has no dtype, shape or data_offsets";
  }
  const uint64_t begin = tensor.offsets[0];
  const uint64_t end = tensor.offsets[1];
  uint64_t bytes = 0;
  if (begin > end || end > data_bytes) {
    return whose + "lies from " + std::to_string(begin) + " to " + std::to_string(end) + " in " +
           std::to_string(data_bytes) + " bytes of data";
  }
  if (__builtin_mul_overflow(tensor.element_bytes, *tensor.elements, &bytes) || bytes != end - begin) {
    return whose + "has another size than its shape and dtype say";
  }
  return {};
}

std::string WhyNoNames(const std::vector<Tensor>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const Tensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  return twice == names.end() ? "" : "two tensors are called '" + Shown(*twice) + "'";
}

// Eight hex digits; nothing where they are none.
std::optional<uint32_t> ParseCrc(std::string_view digits) {
  uint32_t crc = 0;
  for (const char digit : digits) {
    const size_t value = std::string_view("0123456789abcdef").find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    crc = crc << 4 | static_cast<uint32_t>(value);
  }
  return crc;
}

// The CRCs of the header and of `tensors` tensors. They stand first in the header, whose text has been parsed already.
std::string ReadCrcs(std::string_view header, size_t tensors, std::vector<uint32_t>* crcs) {
  if (!header.starts_with(kBegin)) return "it holds no checksums: not an image of Phalanx";
  const std::string_view digits = header.substr(kBegin.size(), header.find('"', kBegin.size()) - kBegin.size());
  if (digits.size() != kDigits * (tensors + 1)) {
    return "it holds " + std::to_string(digits.size() / kDigits) + " checksums for a header and " +
           std::to_string(tensors) + " tensors";
  }
  for (size_t at = 0; at < digits.size(); at += kDigits) {
    const std::optional<uint32_t> crc = ParseCrc(digits.substr(at, kDigits));
    if (!crc) return "a checksum of its header is no number";
    crcs->push_back(*crc);
  }
  return {};
}

// Of everything before the data, as if its own digits were zeros.
uint32_t HeadCrc(const uint8_t* image, uint64_t bytes) {
  const uint64_t at = kLengthBytes + kBegin.size();
  const uint32_t before = Crc32(Crc32(0, image, at), "00000000", kDigits);
  return Crc32(before, image + at + kDigits, bytes - at - kDigits);
}

// Back to back from the first byte of the data to the last.
std::string WhyNotCovered(const std::vector<ImageRecord>& in_order, uint64_t data_at, uint64_t end) {
  uint64_t at = data_at;
  for (const ImageRecord& record : in_order) {
    if (record.offset != at) {
      return "tensor '" + Shown(record.name) + "' lies at " + std::to_string(record.offset) +
             ", and the one before ends at " + std::to_string(at);
    }
    at += record.bytes;
  }
  return at == end ? "" : "its tensors end at " + std::to_string(at) + " of " + std::to_string(end) + " bytes";
}

}  // namespace

bool IsSafetensors(const void* image, uint64_t bytes) {
  const auto* data = static_cast<const uint8_t*>(image);
  return bytes > kLengthBytes && data[kLengthBytes] == '{' && Get<uint32_t>(data) != kLocalSignature;
}

std::string ParseSafetensors(const void* image, uint64_t bytes, std::vector<ImageRecord>* records, std::string* info) {
  const auto* data = static_cast<const uint8_t*>(image);
  records->clear();
  info->clear();
  if (!IsSafetensors(image, bytes)) return "it does not begin as a safetensors file";
  const auto header_bytes = Get<uint64_t>(data);
  if (header_bytes > std::min(kHeaderBytesMax, bytes - kLengthBytes)) {
    return "its header of " + std::to_string(header_bytes) + " bytes is longer than the file, or than a header may be";
  }
  const std::string_view header(reinterpret_cast<const char*>(data + kLengthBytes), header_bytes);
  const uint64_t data_at = kLengthBytes + header_bytes;
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) return reader.why;
  std::vector<uint32_t> crcs;
  if (std::string why = ReadCrcs(header, reader.tensors.size(), &crcs); !why.empty()) return why;
  if (std::string why = WhyNoNames(reader.tensors); !why.empty()) return why;
  std::vector<ImageRecord> found;
  for (size_t i = 0; i < reader.tensors.size(); ++i) {
    Tensor& tensor = reader.tensors[i];
    if (std::string why = WhyNoTensor(tensor, bytes - data_at); !why.empty()) return why;
    const uint64_t length = tensor.offsets[1] - tensor.offsets[0];
    found.push_back({std::move(tensor.name), data_at + tensor.offsets[0], length, crcs[i + 1]});
  }
  std::ranges::sort(found, {}, [](const ImageRecord& record) { return std::pair(record.offset, record.bytes); });
  if (std::string why = WhyNotCovered(found, data_at, bytes); !why.empty()) return why;
  records->push_back({kHeaderRecord, 0, data_at, crcs[0]});
  std::ranges::move(found, std::back_inserter(*records));
  *info = std::move(reader.info);
  return {};
}

std::string CheckSafetensors(const void* image, uint64_t bytes) {
  const auto* data = static_cast<const uint8_t*>(image);
  std::vector<ImageRecord> records;
  std::string info;
  if (std::string why = ParseSafetensors(image, bytes, &records, &info); !why.empty()) return why;
  for (const ImageRecord& record : records) {
    const bool is_header = &record == &records.front();
    const uint32_t found = is_header ? HeadCrc(data, record.bytes) : Crc32(0, data + record.offset, record.bytes);
    if (found == record.crc32) continue;
    return (is_header ? std::string("its header") : "tensor '" + Shown(record.name) + "'") + " of " +
           std::to_string(record.bytes) + " bytes at " + std::to_string(record.offset) +
           " has changed: its CRC is not the one in the header";
  }
  return {};
}

}  // namespace phalanx::checkpoint
