// What `phalanx data` answers: about token datasets, `.bin` and `.idx` of one prefix, and what it makes of several.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace phalanx::cli {

struct DataAnswer {
  std::string text;
  int exit_code = 0;  // 1: something is damaged
};

struct DataMerge {
  std::string out;
  std::vector<std::string> inputs;  // prefixes; or parts, and folders of parts
  std::string dataset_impl = "mmap";
  bool replace = false;
};

// A prefix may also be given by the name of one of its files. The new dataset may take the place of one of the inputs.
StatusOr<DataAnswer> DataMergeAll(const DataMerge& merge, bool json, int64_t now_unix_ms);

// Reads every byte of datasets: whether their files fit together, and are what their sidecars say.
StatusOr<DataAnswer> DataVerify(const std::vector<std::string>& prefixes, bool json);

// What the headers and sidecars of datasets say.
StatusOr<DataAnswer> DataInfo(const std::vector<std::string>& prefixes, bool json);

// The first documents, as the numbers of their tokens.
StatusOr<DataAnswer> DataHead(const std::string& prefix, uint64_t documents, bool json);

}  // namespace phalanx::cli
