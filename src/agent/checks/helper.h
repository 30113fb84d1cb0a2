// The program that checks this node, as a process: `python -m phalanx.node_check`, or a fork of a zygote that has
// become that, told what to check by one pipe, heard by another. The loop's thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/core/checking.h"
#include "agent/workers/spare.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"

namespace phalanx::agent::checks {

class CheckHelper {
 public:
  // What it says, and its end (HelperEnded), which is the last. The helper may be destroyed from within.
  using OnEvent = std::function<void(checking::Event)>;

  static StatusOr<std::unique_ptr<CheckHelper>> Start(EventLoop& loop, Reaper& reaper, const std::string& python,
                                                      const std::map<std::string, std::string>& env, OnEvent on_event);
  // `spare`: of Supervisor::ForkAside.
  static StatusOr<std::unique_ptr<CheckHelper>> StartFrom(EventLoop& loop, Reaper& reaper, Spare spare,
                                                          const std::map<std::string, std::string>& env,
                                                          OnEvent on_event);
  CheckHelper(const CheckHelper&) = delete;
  CheckHelper& operator=(const CheckHelper&) = delete;
  // Ends it: it ends what it has started when its orders are over, and is killed where it does not within a moment.
  ~CheckHelper();

  pid_t pid() const { return pid_; }

  // Hands it a line. What does not fit into the pipe is lost with it: it has stopped to read.
  void Give(const std::string& line);

 private:
  CheckHelper(EventLoop& loop, Reaper& reaper, OnEvent on_event)
      : loop_(loop), reaper_(reaper), on_event_(std::move(on_event)) {}
  void Listen(Fd orders, Fd lines, Fd words);
  void OnProcessEnd(const ProcessEnd& end);
  void Read();
  void ReadWords();
  void TakeLines();

  EventLoop& loop_;
  Reaper& reaper_;
  OnEvent on_event_;
  pid_t pid_ = 0;                     // 0: ended
  std::unique_ptr<Channel> channel_;  // of a fork: what it is to be may still be on its way
  Fd orders_;
  Fd lines_;
  Fd words_;  // its stderr
  std::string text_;
  std::string last_words_;
  std::string fault_;  // of a line that is none
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace phalanx::agent::checks
