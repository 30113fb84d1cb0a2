// Files and folders of a checkpoint directory (docs/formats/checkpoint-manifest.md). Errors name the path and the call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/read_file.h"
#include "base/status.h"

namespace phalanx::checkpoint {

// Names of what lies there, without "." and "..", sorted.
StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Made where it is missing, by the umask.
Status MakeFolder(const std::string& path);

// So that its names survive a crash. File systems that cannot do that are taken as they are.
Status SyncFolder(const std::string& path);

// A file's bytes for reading. Cut by somebody else meanwhile it ends its reader, as mappings do.
class MappedFile {
 public:
  // Of a regular file; InvalidArgument where it is none.
  static StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  MappedFile(const char* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  const char* data_;
  uint64_t bytes_;
};

Status WriteFully(int fd, const std::string& path, std::string_view text);

// A file on its way to its place: in `<dir>/.writing`, empty, locked while this lives, and removed with it unless it
// has been moved. Made for read and write, by the umask. What dead writers of the same file have left there is removed
// first.
class Draft {
 public:
  static StatusOr<Draft> Make(const std::string& dir, const std::string& step_name, const std::string& file);
  Draft(Draft&& other) noexcept;
  Draft& operator=(Draft&&) = delete;
  ~Draft();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

  // The file at `from` takes the place of the empty one. NotFound where somebody else was quicker.
  Status TakeOver(const std::string& from);

  // Syncs it, moves it to `<folder>/<file>` over what is there, and syncs the folder. Unlocked and closed then.
  Status Place(const std::string& folder, const std::string& file);

 private:
  Draft(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Status LockOwn();

  std::string path_;  // empty: moved
  Fd fd_;
};

// As Draft, for a text.
Status ReplaceFile(const std::string& dir, const std::string& step_name, const std::string& folder,
                   const std::string& file, std::string_view text);

}  // namespace phalanx::checkpoint
