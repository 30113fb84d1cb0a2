// Random lives of jobs by seed, for tests of what must always hold.
#pragma once

#include <fmt/format.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/core/job_fixture.h"

namespace phalanx::master {

class RandomLife {
 public:
  explicit RandomLife(uint64_t seed) : random_(seed), job_(MakeJob()) {}

  // Something happens.
  void Act() {
    const uint64_t session = AnySession();
    const uint64_t dice = Pick(23);
    story_.push_back(fmt::format("{} ms: dice {} session {}", job_.now, dice, session));
    if (session == 0 || dice < 5) return AttachSome();
    if (dice == 5) return job_.Detach(session);
    if (dice == 6) return job_.Leave(session);
    if (dice == 7) return static_cast<void>(silent_.insert(session));
    if (dice < 11) return ExitSome(session);
    if (dice < 13 && job_.state.round) return job_.AllStep();
    if (dice < 16) return TellSome(session);
    const int64_t spans[] = {0, 1, 10, 300, 1'000, 3'000, 31'000};
    job_.Pass(spans[Pick(7)], silent_);
  }

  const std::vector<std::string>& story() const { return story_; }
  const JobFixture& job() const { return job_; }

 private:
  uint64_t Pick(uint64_t bound) { return random_() % bound; }

  JobFixture MakeJob() {
    const auto node_unit = static_cast<uint32_t>(Pick(3) == 0 ? 2 + Pick(2) : 1);
    const auto min_nodes = static_cast<uint32_t>(1 + Pick(4)) * node_unit;
    const auto max_nodes = min_nodes + static_cast<uint32_t>(Pick(3)) * node_unit;
    std::optional<uint32_t> restarts;
    if (Pick(2) == 0) restarts = static_cast<uint32_t>(Pick(4));
    if (Pick(4) == 0) restarts = 1'000;
    JobFixture job(min_nodes, max_nodes, restarts, node_unit);
    // Divisors of the batch that at least some of these nodes can be.
    if (Pick(2) == 0) {
      const uint64_t batches[] = {12, 24, 36, 60, 120};
      job.UseElasticConfig(
          fmt::format(R"({{"enabled":true,"max_train_batch_size":{},"micro_batch_sizes":[1],"version":0.1,)"
                      R"("min_gpus":{},"min_time":{}}})",
                      batches[Pick(5)], 1 + Pick(3), Pick(3) == 0 ? "0.1" : "0"));
      ranks_max_ = 2;
    }
    return job;
  }

  uint64_t AnySession() {
    if (job_.state.nodes.empty()) return 0;
    auto it = job_.state.nodes.begin();
    std::advance(it, static_cast<long>(Pick(job_.state.nodes.size())));
    return it->first;
  }

  // Steps and saves of the live round or the one before, made up.
  void TellSome(uint64_t session) {
    v1::Beat beat;
    beat.set_epoch(Pick(4) == 0 && job_.state.last_round ? job_.state.last_round->epoch : job_.Epoch());
    v1::Progress& progress = *beat.mutable_progress();
    progress.set_saving_ms(static_cast<int64_t>(Pick(3'000)));
    if (Pick(4) > 0) {
      progress.set_step(static_cast<int64_t>(Pick(50)));
      progress.set_from_step(static_cast<int64_t>(Pick(50)));
      if (Pick(2) == 0) progress.set_caught_up_ms_ago(static_cast<int64_t>(Pick(2'000)));
    }
    job_.Say(session, beat);
  }

  void AttachSome() {
    v1::Hello info = job_.Info(fmt::format("n{}", Pick(8)), static_cast<uint32_t>(1 + Pick(ranks_max_)));
    if (Pick(3) == 0) {
      info.set_seen_epoch(job_.state.highest_epoch);
      info.mutable_live_round()->set_epoch(job_.state.highest_epoch);
    }
    if (Pick(8) == 0) info.set_node_rank_wanted(static_cast<int32_t>(Pick(job_.spec.max_nodes())));
    job_.Attach(info);
  }

  void ExitSome(uint64_t session) {
    const auto local_rank = static_cast<uint32_t>(Pick(3));
    const uint64_t epoch = Pick(4) == 0 && job_.state.last_round ? job_.state.last_round->epoch : 0;
    switch (Pick(4)) {
      case 0:
        return job_.Exit(session, JobFixture::Collateral(local_rank), epoch);
      case 1:
        return job_.Exit(session, JobFixture::Ended(local_rank, 0), epoch);
      case 2:
        return job_.Exit(session, JobFixture::Ended(local_rank, 3), epoch);
      default:
        return job_.Kill(session, local_rank, epoch);
    }
  }

  std::mt19937_64 random_;
  uint64_t ranks_max_ = 3;  // of a node

 protected:
  JobFixture job_;
  std::vector<std::string> story_;

 private:
  std::set<uint64_t> silent_;
};

}  // namespace phalanx::master
