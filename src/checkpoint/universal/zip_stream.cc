#include "checkpoint/universal/zip_stream.h"

#include "checkpoint/image/image_bytes.h"

namespace phalanx::universal {
namespace {

constexpr size_t kPartBytesMax = 255;

uint8_t* BytesOf(std::string& text) { return reinterpret_cast<uint8_t*>(text.data()); }

bool IsPart(std::string_view part) {
  return !part.empty() && part != "." && part != ".." && part.size() <= kPartBytesMax &&
         part.find('\0') == std::string_view::npos;
}

}  // namespace

bool IsInnerPath(std::string_view name) {
  while (true) {
    const size_t slash = name.find('/');
    if (!IsPart(name.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

std::string ZipStream::Begin(std::string_view name, uint64_t bytes) {
  name_ = name;
  record_bytes_ = bytes;
  place_ = checkpoint::PlaceRecord(at_, name.size(), bytes);
  std::string header(place_.data_at - place_.header_at, '\0');
  checkpoint::PutLocal(BytesOf(header), place_, name_, bytes);
  return header;
}

std::string ZipStream::End(uint32_t crc32) {
  std::string descriptor(place_.end - place_.data_at - record_bytes_, '\0');
  checkpoint::PutDescriptor(BytesOf(descriptor), place_, record_bytes_, crc32);
  std::string entry(checkpoint::EntryBytes(place_.header_at, name_.size(), record_bytes_), '\0');
  checkpoint::PutEntry(BytesOf(entry), place_.header_at, name_, record_bytes_, crc32);
  directory_ += entry;
  ++entries_;
  at_ = place_.end;
  return descriptor;
}

std::string ZipStream::Finish() {
  std::string ending(checkpoint::kEndingBytes, '\0');
  checkpoint::PutEnding(BytesOf(ending), at_ + directory_.size(), at_, entries_);
  return directory_ + ending;
}

}  // namespace phalanx::universal
