// Feeds both ends of a relay's connection what a hostile other end could send: frames whole, cut and wrong, numbers
// used again, windows not kept. Between the bytes the owner does what owners do: opens, sends, takes, closes. The first
// byte says which end this is.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "store/mux.h"

namespace phalanx::store {
namespace {

constexpr uint64_t kEpoch = 7;

class Session {
 public:
  explicit Session(Mux::End end) : end_(end), mux_(end, kEpoch) {
    std::string greeting(Mux(Mux::End::kRelay, kEpoch).Output());
    std::string_view bytes = greeting;
    PHX_CHECK(mux_.Take(bytes).kind == Mux::Event::Kind::kGreeted && bytes.empty(), "a greeting was not known");
  }

  // One byte: what the owner does. Bits 0-1: 0 nothing, 1 opens, 2 closes, 3 sends; bit 2: all that waits to go is
  // sent; bit 3: what has come is taken. One byte: how many of the following bytes come.
  std::string_view Step(std::string_view input) {
    const auto what = static_cast<uint8_t>(input[0]);
    const size_t length = std::min<size_t>(static_cast<uint8_t>(input[1]), input.size() - 2);
    if ((what & 3) == 1 && end_ == Mux::End::kRelay) Open();
    if ((what & 3) == 2) Close();
    if ((what & 3) == 3) Send();
    if ((what & 8) != 0) TakeAll();
    if ((what & 4) != 0) mux_.Sent(mux_.Output().size());
    if (mux_.WantsInput()) Receive(input.substr(2, length));
    PHX_CHECK(mux_.Output().size() < Mux::kOutputMaxBytes + (128 << 10), "more waits to go than may");
    return input.substr(2 + length);
  }

 private:
  void Open() {
    const std::optional<ClientNumber> client = mux_.Open();
    if (!client) return;
    PHX_CHECK(kept_.emplace(*client, 0).second, "a number was given twice");
  }

  void Close() {
    if (kept_.empty()) return;
    mux_.Close(kept_.begin()->first);
    kept_.erase(kept_.begin());
  }

  void Send() {
    if (kept_.empty()) return;
    const ClientNumber client = kept_.rbegin()->first;
    mux_.Send(client, std::string(mux_.Room(client), 'x'));
  }

  void TakeAll() {
    for (auto& [client, kept] : kept_) {
      mux_.Taken(client, kept);
      kept = 0;
    }
  }

  void Receive(std::string_view bytes) {
    using Kind = Mux::Event::Kind;
    for (Mux::Event event = mux_.Take(bytes); event.kind != Kind::kMore; event = mux_.Take(bytes)) {
      if (event.kind == Kind::kOpened) {
        PHX_CHECK(kept_.emplace(event.client, 0).second, "a client was opened twice");
        continue;
      }
      if (event.kind == Kind::kViolation) {
        PHX_CHECK(mux_.violation() != nullptr, "a violation of nothing");
        continue;
      }
      PHX_CHECK(kept_.contains(event.client), "something of a client that is not there");
      if (event.kind == Kind::kBytes) {
        kept_[event.client] += event.bytes.size();
        PHX_CHECK(kept_[event.client] <= Mux::kWindowBytes, "more is kept of a client than its window");
      }
    }
    PHX_CHECK(bytes.empty() || mux_.violation() != nullptr, "bytes were left");
  }

  const Mux::End end_;
  Mux mux_;
  std::map<ClientNumber, size_t> kept_;  // of each open client: bytes that are not taken
};

}  // namespace
}  // namespace phalanx::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using phalanx::store::Mux;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  phalanx::store::Session session((input[0] & 1) != 0 ? Mux::End::kRelay : Mux::End::kStore);
  input.remove_prefix(1);
  while (input.size() >= 2) input = session.Step(input);
  return 0;
}
