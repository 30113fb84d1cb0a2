// An image as a safetensors file, read: docs/formats/checkpoint-safetensors.md. It is laid out by who saves (frame.h).
// Everything here is pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/image/image.h"

namespace phalanx::checkpoint {

constexpr const char* kHeaderRecord = "__metadata__";  // no tensor is called so

// By its first bytes, whether it is such a file and not a zip; what else is wrong with it is not looked for.
bool IsSafetensors(const void* image, uint64_t bytes);

// The header as record `kHeaderRecord`, then the tensors as they lie, with the CRCs that the header says. `info`: what
// the image says of itself, JSON text. Believes nothing: every place is within the file. The reason where it is none of
// ours, else empty.
std::string ParseSafetensors(const void* image, uint64_t bytes, std::vector<ImageRecord>* records, std::string* info);

// The same, and reads every byte: the reason where a record does not have the CRC that it should.
std::string CheckSafetensors(const void* image, uint64_t bytes);

}  // namespace phalanx::checkpoint
