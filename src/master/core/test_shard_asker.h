// Ranks that ask for shards, for tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "master/core/job_fixture.h"

namespace phalanx::master {

class ShardAsker {
 public:
  explicit ShardAsker(JobFixture& job) : job_(&job) {}

  static v1::DatasetSpec Spec(uint64_t size, uint64_t shard_size, uint64_t passes = 1) {
    v1::DatasetSpec spec;
    spec.set_size(size);
    spec.set_shard_size(shard_size);
    spec.set_passes(passes);
    return spec;
  }
  static v1::DatasetState State(uint64_t size, uint64_t shard_size, uint64_t next, const std::vector<uint64_t>& gaps) {
    v1::DatasetState state;
    *state.mutable_spec() = Spec(size, shard_size);
    state.set_next(next);
    state.mutable_undone_gaps()->Add(gaps.begin(), gaps.end());
    return state;
  }

  // To take a shard, where it is not made another one.
  v1::ShardRequest Request(uint32_t local_rank, const std::string& dataset = "data") {
    v1::ShardRequest request;
    request.set_epoch(job_->Epoch());
    request.set_local_rank(local_rank);
    request.set_request(++requests_);
    request.set_dataset(dataset);
    request.mutable_take();
    return request;
  }
  v1::ShardReply Answer(uint64_t session, const v1::ShardRequest& request) {
    const size_t before = job_->shard_replies.size();
    job_->Say(session, request);
    while (job_->shard_replies.size() == before) {
      PHX_CHECK(NextDeadline(job_->state) != kNever, "no answer");
      job_->Pass(1);
    }
    const ToldShards& told = job_->shard_replies.back();
    PHX_CHECK(told.session == session && told.reply.request() == request.request(), "another's answer");
    return told.reply;
  }
  std::string Refused(uint64_t session, const v1::ShardRequest& request) { return Answer(session, request).refused(); }

  std::string RefusedOpen(uint64_t session, uint32_t local_rank, const v1::DatasetSpec& spec,
                          const std::string& dataset = "data") {
    v1::ShardRequest request = Request(local_rank, dataset);
    *request.mutable_open() = spec;
    return Answer(session, request).refused();
  }
  void Open(uint64_t session, uint32_t local_rank, const v1::DatasetSpec& spec, const std::string& dataset = "data") {
    const std::string refused = RefusedOpen(session, local_rank, spec, dataset);
    PHX_CHECK(refused.empty(), refused.c_str());
  }
  std::optional<uint64_t> TakeBy(uint64_t session, const v1::ShardRequest& request) {
    const v1::ShardReply reply = Answer(session, request);
    PHX_CHECK(reply.refused().empty(), reply.refused().c_str());
    return reply.has_shard() ? std::optional(reply.shard()) : std::nullopt;
  }
  std::optional<uint64_t> Take(uint64_t session, uint32_t local_rank) { return TakeBy(session, Request(local_rank)); }
  // Why not; empty: it is.
  std::string Done(uint64_t session, uint32_t local_rank, uint64_t shard) {
    v1::ShardRequest request = Request(local_rank);
    request.mutable_done()->add_shards(shard);
    return Answer(session, request).refused();
  }
  std::string Restore(uint64_t session, uint32_t local_rank, const v1::DatasetState& state) {
    v1::ShardRequest request = Request(local_rank);
    *request.mutable_restore() = state;
    return Answer(session, request).refused();
  }

 private:
  JobFixture* job_;
  uint64_t requests_ = 0;
};

}  // namespace phalanx::master
