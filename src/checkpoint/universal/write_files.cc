#include "checkpoint/universal/write_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "checkpoint/rank/thread.h"
#include "checkpoint/universal/syscalls.h"
#include "checkpoint/universal/zip_stream.h"

namespace phalanx::universal {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{256} << 10;  // what a core's cache keeps between the CRC and the copy
constexpr uint64_t kBeginBytes = uint64_t{8} << 20;    // so that fsync has little left to wait for
constexpr int kThreadsMax = 64;

// A file on its way, and what has come of it so far.
class Out {
 public:
  Out(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  // What stands around data: kept until it is worth a call.
  Result<Done> Put(std::string_view text) {
    crc32_ = Crc32(crc32_, text.data(), text.size());
    bytes_ += text.size();
    kept_ += text;
    return kept_.size() < kBlockBytes ? Result<Done>(Done{}) : Flush();
  }

  // Of all pieces; `crc32`: that of them alone.
  Result<Done> PutRecord(const Record& record, uint32_t* crc32) {
    for (const Piece& piece : record) {
      const auto* at = static_cast<const char*>(piece.at);
      for (uint64_t left = piece.bytes; left > 0;) {
        const uint64_t block = std::min(left, kBlockBytes);
        PHX_TRY_DONE(PutData({at, block}, crc32));
        at += block;
        left -= block;
      }
    }
    return Done{};
  }

  Result<Written> Close() {
    PHX_TRY_DONE(Flush());
    PHX_TRY_DONE(Sync(fd_.get(), path_));
    return Written{bytes_, crc32_};
  }

 private:
  Result<Done> PutData(std::string_view data, uint32_t* record_crc32) {
    const uint32_t crc32 = Crc32(0, data.data(), data.size());
    crc32_ = joiner_.Join(crc32_, crc32, data.size());
    *record_crc32 = record_joiner_.Join(*record_crc32, crc32, data.size());
    bytes_ += data.size();
    if (kept_.size() + data.size() < kBlockBytes) {
      kept_ += data;
      return Done{};
    }
    PHX_TRY_DONE(Flush());
    return Write(data);
  }

  Result<Done> Flush() {
    PHX_TRY_DONE(Write(kept_));
    kept_.clear();
    return Done{};
  }

  Result<Done> Write(std::string_view data) {
    PHX_TRY_DONE(WriteFully(fd_.get(), path_, data));
    written_bytes_ += data.size();
    if (written_bytes_ - begun_bytes_ < kBeginBytes) return Done{};
    // Best effort: what fails here fails in fsync as well.
    sync_file_range(fd_.get(), static_cast<off_t>(begun_bytes_), static_cast<off_t>(written_bytes_ - begun_bytes_),
                    SYNC_FILE_RANGE_WRITE);
    begun_bytes_ = written_bytes_;
    return Done{};
  }

  Fd fd_;
  std::string path_;
  std::string kept_;
  uint64_t bytes_ = 0;
  uint64_t written_bytes_ = 0;
  uint64_t begun_bytes_ = 0;
  uint32_t crc32_ = 0;
  Crc32Joiner joiner_;
  Crc32Joiner record_joiner_;
};

uint64_t BytesOf(const Record& record) {
  uint64_t bytes = 0;
  for (const Piece& piece : record) bytes += piece.bytes;
  return bytes;
}

Result<Done> PutZipped(Out& out, ZipStream& zip, std::string_view name, const Record& record) {
  PHX_TRY_DONE(out.Put(zip.Begin(name, BytesOf(record))));
  uint32_t crc32 = 0;
  PHX_TRY_DONE(out.PutRecord(record, &crc32));
  return out.Put(zip.End(crc32));
}

Result<Done> PutZipped(Out& out, ZipStream& zip, std::string_view name, std::string_view text) {
  return PutZipped(out, zip, name, Record{{text.data(), text.size()}});
}

// The records in the order of torch.save.
Result<Done> PutZip(Out& out, const File& file) {
  ZipStream zip;
  PHX_TRY_DONE(PutZipped(out, zip, "archive/data.pkl", file.pickle));
  PHX_TRY_DONE(PutZipped(out, zip, "archive/byteorder", "little"));
  for (size_t i = 0; i < file.records.size(); ++i) {
    PHX_TRY_DONE(PutZipped(out, zip, "archive/data/" + std::to_string(i), file.records[i]));
  }
  PHX_TRY_DONE(PutZipped(out, zip, "archive/version", "3\n"));
  return out.Put(zip.Finish());
}

Result<Written> Create(int folder, const std::string& folder_path, const File& file) {
  const std::string path = folder_path + "/" + file.name;
  Fd fd(openat(folder, file.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  Out out(std::move(fd), path);
  if (file.zipped) {
    PHX_TRY_DONE(PutZip(out, file));
  } else {
    uint32_t crc32 = 0;
    PHX_TRY_DONE(out.PutRecord(file.records.front(), &crc32));
  }
  return out.Close();
}

Written CountsOf(const Record& record) {
  Written counts;
  Crc32Joiner joiner;
  for (const Piece& piece : record) {
    counts.crc32 = joiner.Join(counts.crc32, Crc32(0, piece.at, piece.bytes), piece.bytes);
    counts.bytes += piece.bytes;
  }
  return counts;
}

Result<Written> Make(int folder, const std::string& folder_path, const File& file) {
  const bool linked =
      file.link != nullptr && linkat(AT_FDCWD, file.link, folder, file.name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  if (!linked) return Create(folder, folder_path, file);
  const std::string path = folder_path + "/" + file.name;
  const Fd fd(openat(folder, file.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  PHX_TRY_DONE(Sync(fd.get(), path));
  return CountsOf(file.records.front());
}

// Threads that share out the numbers below `count`, until one fails.
class Crew {
 public:
  using Body = Result<Done> (*)(void* context, size_t number);
  Crew(size_t count, Body body, void* context) : count_(count), body_(body), context_(context) {}

  Result<Done> Run(int threads) {
    std::vector<pthread_t> started;
    const auto wanted = std::min<size_t>(static_cast<size_t>(std::clamp(threads, 1, kThreadsMax)), count_);
    for (size_t i = 1; i < wanted; ++i) {
      pthread_t thread;
      if (!checkpoint::StartThread(Work, this, &thread)) break;  // those that could be started do it
      started.push_back(thread);
    }
    Work(this);
    for (const pthread_t thread : started) checkpoint::JoinThread(thread);
    if (failed_) return error_;
    return Done{};
  }

 private:
  static void* Work(void* self) {
    auto& crew = *static_cast<Crew*>(self);
    for (size_t i = crew.next_++; i < crew.count_ && !crew.failed_; i = crew.next_++) {
      if (const Result<Done> done = crew.body_(crew.context_, i); !done.ok()) crew.Fail(done.error());
    }
    return nullptr;
  }

  void Fail(const Error& error) {
    const checkpoint::MutexLock lock(mutex_);
    if (!failed_) error_ = error;
    failed_ = true;
  }

  const size_t count_;
  const Body body_;
  void* const context_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  checkpoint::Mutex mutex_;
  Error error_;  // the first one; read when all threads have ended
};

// "" for the folder itself, and each folder below it that a file lies in: outer ones first.
std::vector<std::string> FoldersOf(const std::vector<File>& files) {
  std::vector<std::string> folders = {""};
  for (const File& file : files) {
    for (size_t at = file.name.find('/'); at != std::string::npos; at = file.name.find('/', at + 1)) {
      folders.push_back(file.name.substr(0, at));
    }
  }
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  return folders;
}

struct Work {
  const std::string& path;
  int folder;
  const std::vector<File>& files;
  const std::vector<std::string>& folders;
  std::vector<Written>& written;
};

Result<Done> WriteOne(void* context, size_t number) {
  const Work& work = *static_cast<Work*>(context);
  PHX_TRY(work.written[number], Make(work.folder, work.path, work.files[number]));
  return Done{};
}

std::string Below(const std::string& folder, const std::string& name) { return folder + "/" + name; }

Result<Done> SyncOne(void* context, size_t number) {
  const Work& work = *static_cast<Work*>(context);
  const std::string& name = work.folders[number];
  const std::string path = name.empty() ? work.path : Below(work.path, name);
  PHX_TRY(const Fd fd, OpenFolder(path));
  return Sync(fd.get(), path);
}

}  // namespace

Result<std::vector<Written>> WriteFiles(const std::string& folder, const std::vector<File>& files, int threads) {
  for (const File& file : files) {
    if (!IsInnerPath(file.name)) return Error{folder + ": '" + file.name + "' is no name for a file in it"};
  }
  PHX_TRY(const Fd fd, OpenFolder(folder));
  const std::vector<std::string> folders = FoldersOf(files);
  for (const std::string& name : folders) {
    if (name.empty() || mkdirat(fd.get(), name.c_str(), 0777) == 0 || errno == EEXIST) continue;
    return CallFailed(Below(folder, name), "mkdir", errno);
  }
  std::vector<Written> written(files.size());
  Work work = {folder, fd.get(), files, folders, written};
  PHX_TRY_DONE(Crew(files.size(), WriteOne, &work).Run(threads));
  PHX_TRY_DONE(Crew(folders.size(), SyncOne, &work).Run(threads));
  return written;
}

}  // namespace phalanx::universal
