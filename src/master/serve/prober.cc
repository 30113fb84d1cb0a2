#include "master/serve/prober.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/port_probe.h"
#include "base/thread.h"

namespace phalanx::master {
namespace {

// The first bytes of any HTTP/2 client, and no settings. A master answers them, be its job open or closed: it gives its
// own settings, or says that it is (src/wire/closed_door.h).
constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

struct Question {
  Probed answer;
  int open = 0;  // ports that have not answered
};

}  // namespace

void Prober::Finish() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
}

void Prober::Ask(const Probe& probe) {
  if (!thread_.joinable()) {
    StatusOr<std::thread> started = StartThread([this] { loop_.Run(); });
    if (!started.ok()) return;  // it is asked again
    thread_ = *std::move(started);
  }
  loop_.Post([this, probe] { Begin(probe); });
}

void Prober::Begin(const Probe& probe) {
  auto question = std::make_shared<Question>();
  question->answer.node_id = probe.node_id;
  question->open = (probe.master_port != 0 ? 1 : 0) + (probe.presence_port != 0 ? 1 : 0);
  const auto ask = [this, &probe, question](uint32_t port, std::string_view hello, Reach Probed::*which) {
    if (port == 0) return;
    const auto done = [this, question, which](Reach reach, const std::string& said) {
      // Where an agent says that it is another one, that one has ended.
      const bool another = which == &Probed::agent && !said.empty() && said != question->answer.node_id;
      if (another) reach = Reach::kRefused;
      question->answer.*which = reach;
      if (--question->open > 0) return;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        answers_.push_back(question->answer);
      }
      on_answer_();
    };
    ProbePort(loop_, probe.address, static_cast<uint16_t>(port), std::string(hello), kProbeMs, done);
  };
  ask(probe.master_port, kPreface, &Probed::master);
  ask(probe.presence_port, "", &Probed::agent);
}

std::vector<Probed> Prober::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(answers_, {});
}

}  // namespace phalanx::master
