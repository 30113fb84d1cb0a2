// phalanx-checkpoint-writer: a rank that does nothing but save, step after step, until it is killed. For tests.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/rank/capi.h"
#include "checkpoint/rank/test_state.h"

namespace {

using phalanx::checkpoint::FillTestRecord;
using phalanx::checkpoint::kTestPickle;
using phalanx::checkpoint::TestStateBytes;

struct Options {
  std::string control;
  uint64_t epoch = 0;
  int64_t step = 0;
  int threads = 1;
  int socket = -1;
};

int Fail(const char* what) {
  std::fprintf(stderr, "phalanx-checkpoint-writer: %s\n", what);
  return 1;
}

// The test that started this program may be killed at any time, too. The kernel tells nothing of a parent that has
// died before it was asked to; the socket's end does.
bool DieWithParent(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd parent = {socket, 0, 0};
  return poll(&parent, 1, 0) == 0;  // else it hung up
}

// Saves one step; true when it is over.
bool SaveStep(phx_ckpt* ckpt, phx_ckpt_save save, int socket, std::string* error) {
  const std::string text = std::to_string(save.step);
  save.notify = text.data();
  save.notify_bytes = text.size();
  int slot = PHX_CKPT_NO_SLOT;
  while ((slot = phx_ckpt_begin(ckpt, &save, error->data(), error->size())) == PHX_CKPT_NO_SLOT) {
    char news;
    if (recv(socket, &news, 1, 0) <= 0) {  // else something was committed or released
      *error = "the socket has ended";
      return false;
    }
  }
  phx_ckpt_outcome outcome{};
  return slot >= 0 && phx_ckpt_wait_copied(ckpt, &outcome) == 0 && outcome.state == PHX_CKPT_SEALED;
}

int SaveForever(const Options& options) {
  if (!DieWithParent(options.socket)) return Fail("nobody is at the socket's other end");
  std::string error(500, '\0');
  phx_ckpt* ckpt = phx_ckpt_open(options.control.c_str(), options.epoch, error.data(), error.size());
  if (ckpt == nullptr) return Fail(error.c_str());
  std::vector<std::string> state;
  std::vector<const void*> sources;
  for (const uint64_t bytes : TestStateBytes()) state.emplace_back(bytes, '\0');
  sources.reserve(state.size());
  for (const std::string& record : state) sources.push_back(record.data());
  phx_ckpt_save save{};
  save.world_size = 1;
  save.n = state.size();
  save.bytes = TestStateBytes().data();
  save.source = sources.data();
  save.pickle = kTestPickle.data();
  save.pickle_bytes = kTestPickle.size();
  save.threads = options.threads;
  save.notify_fd = options.socket;
  std::vector<uint64_t> offsets(save.n);
  uint64_t hash = 0;
  phx_ckpt_layout(save.bytes, save.n, save.pickle_bytes, &save.file_bytes, offsets.data(), &hash);
  for (save.step = options.step;; ++save.step) {
    for (std::string& record : state) FillTestRecord(save.step, &record);
    if (!SaveStep(ckpt, save, options.socket, &error)) return Fail(error.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Saves a small state into the slots beside a control page, step after step, until it is killed.");
  Options options;
  app.add_option("--control", options.control, "the control page")->required();
  app.add_option("--epoch", options.epoch, "the epoch this rank was started for");
  app.add_option("--step", options.step, "the first step to save");
  app.add_option("--threads", options.threads, "copiers");
  app.add_option("--socket", options.socket, "gets each step that is sealed; a byte from it: try again")->required();
  CLI11_PARSE(app, argc, argv);
  return SaveForever(options);
}
