// The door for what agents say: every size and number from outside is bounded here, once, in the message itself. Behind
// it the core, the journal and the simulator use the message as it is. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "master/core/core.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// Longer than any job: what a message or a journal tells of a span of time is bounded by it, so that sums of times stay
// far from overflow.
constexpr int64_t kMaxSpanMs = int64_t{10} * 365 * 24 * 3'600'000;

// Bounds all fields that the core reads: texts are cut, or dropped where a part of one says nothing; numbers that no
// job comes to are brought within what one can. A body that no agent of ours sends is taken out: the message then says
// no more than that its agent lives. `next_store_port` of a Hello is left to Refusal (door.h), which names it.
void Admit(v1::AgentMessage& message);

// The same of a spec; fields that are not given get the value that DefaultSpec has.
void AdmitSpec(v1::JobSpec& spec);

// A failure that an earlier master has kept, bounded like what an agent says. `node`: its name.
Failure AdmitFailure(v1::Failure failure, const std::string& node);

// The event of a stream's first message, which is a Hello. `peer_address`: the stream's other end.
AgentAttached AttachedOf(uint64_t session, v1::AgentMessage message, const std::string& peer_address);

// The event of any later one.
Event EventOf(uint64_t session, v1::AgentMessage message);

}  // namespace phalanx::master
