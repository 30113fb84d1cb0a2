// Writes a replay log (docs/formats/replay-log.md) while a component runs. Belongs to the thread that decides: each
// frame is one write() there, so that what a step that ends the process was told is in the file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"
#include "replay/log.h"

namespace phalanx::replay {

class Recorder {
 public:
  // Makes `folder` (0700) where it is missing, its parents not, and in it the new file `name`.replay (0600). `warn` is
  // called once at most: the log has come to `max_bytes`, or the disk takes nothing more. Nothing is recorded then.
  static StatusOr<std::unique_ptr<Recorder>> Open(const std::string& folder, const std::string& name,
                                                  const v1::ReplayStart& start,
                                                  std::function<void(const std::string&)> warn,
                                                  uint64_t max_bytes = kMaxLogBytes);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  // Writes the log's end.
  ~Recorder();

  void Add(const v1::ReplayFrame& frame);

 private:
  Recorder(std::string path, Fd file, std::function<void(const std::string&)> warn, uint64_t max_bytes);
  Status Write(const std::string& bytes);
  void End(bool full);

  const std::string path_;
  Fd file_;  // closed: nothing is recorded any more
  const std::function<void(const std::string&)> warn_;
  const uint64_t max_bytes_;
  uint64_t bytes_ = 0;  // written
};

}  // namespace phalanx::replay
