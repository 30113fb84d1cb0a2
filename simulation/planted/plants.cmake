# Known bugs of a launcher's control plane. Each must be found by the simulator within SEEDS seeds, counted from 1
# (simulation/planted_test.cc). FIRST saves time: the seed that found it last, of those that are found late.
# `./run sim --list-plants` names them.

# --- the master ---

phx_plant(NAME lease-not-renewed FILE master/core/core.cc SEEDS 500
  WHAT "messages do not renew the sender's lease"
  FIND [==[  node->second.last_heard = turn.now;]==]
  PUT [==[  if (!PLANTED) node->second.last_heard = turn.now;]==])

phx_plant(NAME double-charge FILE master/core/failures.cc SEEDS 500
  WHAT "one failure of a worker costs two restarts"
  FIND [==[  const Charge charge = ChargeFailure(job.budget, round.stepped, older_next, error, turn.now);]==]
  PUT [==[  if (PLANTED) static_cast<void>(ChargeFailure(job.budget, round.stepped, older_next, error, turn.now));
  const Charge charge = ChargeFailure(job.budget, round.stepped, older_next, error, turn.now);]==])

phx_plant(NAME change-is-charged FILE master/core/rounds.cc SEEDS 500
  WHAT "a change of the nodes costs a restart"
  FIND [==[  if (!round.broken.empty()) return ReformRound(]==]
  PUT [==[  if (PLANTED && !round.broken.empty() && job.budget.used < AllowedRestarts(job.budget)) ++job.budget.used;
  if (!round.broken.empty()) return ReformRound(]==])

phx_plant(NAME charge-not-returned FILE master/core/failures.cc SEEDS 3000 FIRST 453
  WHAT "what peers of a lost node report costs a restart"
  FIND [==[  if (!job.last_round || !job.last_round->budget_before) return;]==]
  PUT [==[  if (PLANTED || !job.last_round || !job.last_round->budget_before) return;]==])

phx_plant(NAME missing-epoch-check FILE master/core/failures.cc SEEDS 1000
  WHAT "the end of a worker of an old epoch counts for the live one"
  FIND [==[  if (turn.IsCurrent(epoch) && node.group_rank >= 0) {]==]
  PUT [==[  if ((PLANTED ? turn.HasLiveRound() : turn.IsCurrent(epoch)) && node.group_rank >= 0) {]==])

phx_plant(NAME epoch-used-twice FILE master/core/rounds.cc SEEDS 500
  WHAT "the round after a failure has the epoch of the one before"
  FIND [==[  round.epoch = ++job.highest_epoch;]==]
  PUT [==[  round.epoch = PLANTED && job.highest_epoch > 0 ? job.highest_epoch : ++job.highest_epoch;]==])

phx_plant(NAME ranks-with-holes FILE master/core/rounds.cc SEEDS 500
  WHAT "after a shrink the survivors keep their numbers"
  FIND [==[    part.set_group_rank(static_cast<uint32_t>(rank));]==]
  PUT [==[    const bool shrunk = PLANTED && job.last_round && job.last_round->slots.size() > members.size();
    part.set_group_rank(static_cast<uint32_t>(rank) + (shrunk ? 1 : 0));]==])

phx_plant(NAME growth-never-comes FILE master/core/arrivals.cc SEEDS 1000
  WHAT "nodes that come while the job trains are never taken in"
  FIND [==[void PlanGrowth(Turn& turn) {]==]
  PUT [==[void PlanGrowth(Turn& turn) {
  if (PLANTED) return;]==])

phx_plant(NAME spare-forgotten FILE master/core/members.cc SEEDS 1000
  WHAT "a spare does not step in for a lost node"
  FIND [==[    if (node.leaving || !node.left_out.empty() || (which != Which::kAll && node.unchecked)) continue;]==]
  PUT [==[    if (PLANTED && s.phase == Phase::kRunning && node.previous_rank < 0) continue;
    if (node.leaving || !node.left_out.empty() || (which != Which::kAll && node.unchecked)) continue;]==])

phx_plant(NAME world-size-not-granted FILE master/core/members.cc SEEDS 500
  WHAT "a round takes all nodes that are there, whatever the elastic config grants"
  FIND [==[  if (sizes) return ChooseWorld(]==]
  PUT [==[  if (sizes && !PLANTED) return ChooseWorld(]==])

phx_plant(NAME waits-for-the-largest-world FILE master/core/members.cc SEEDS 1000
  WHAT "a job whose elastic config grants less than all nodes waits for more"
  FIND [==[  return !s.sizes || WorldOf(s, false).nodes > 0;]==]
  PUT [==[  if (PLANTED && s.sizes) return WorldOf(s, false).nodes == s.census.candidates();
  return !s.sizes || WorldOf(s, false).nodes > 0;]==])

phx_plant(NAME min-time-forgotten FILE master/core/members.cc SEEDS 2000
  WHAT "a round is made larger before min_time of the elastic config is over"
  FIND [==[s.round->begun_at + (s.sizes ? s.sizes->round_ms_min : 0); }]==]
  PUT [==[s.round->begun_at + (s.sizes && !PLANTED ? s.sizes->round_ms_min : 0); }]==])

phx_plant(NAME old-stream-stays FILE master/core/arrivals.cc SEEDS 3000 FIRST 477
  WHAT "the old stream of a node that has dialled again is believed beside the new one"
  FIND [==[    RemoveNode(turn, session, "it came again on a new stream"]==]
  PUT [==[    if (!PLANTED) RemoveNode(turn, session, "it came again on a new stream"]==])

phx_plant(NAME lost-node-stays FILE master/core/departures.cc SEEDS 500
  WHAT "a round goes on without a member that was lost"
  FIND [==[    job.round->broken.push_back(what);]==]
  PUT [==[    if (!PLANTED) job.round->broken.push_back(what);]==])

phx_plant(NAME finish-to-all-but-one FILE master/core/ending.cc SEEDS 500
  WHAT "the last of several nodes is not told that the job is over"
  FIND [==[    if (!HasGone(node)) turn.Send(session, finish, job.outcome->reason);]==]
  PUT [==[    const bool forgotten = PLANTED && job.round && node.group_rank > 0 &&
                           static_cast<size_t>(node.group_rank) + 1 == job.round->slots.size();
    if (!HasGone(node) && !forgotten) turn.Send(session, finish, job.outcome->reason);]==])

phx_plant(NAME success-too-early FILE master/core/failures.cc SEEDS 500
  WHAT "the job is a success while one rank still runs"
  FIND [==[    if (turn.IsLive(round.epoch) && round.ranks_done == round.world_size) {]==]
  PUT [==[    if (turn.IsLive(round.epoch) && round.ranks_done + (PLANTED ? 1 : 0) >= round.world_size) {]==])

phx_plant(NAME waits-for-ever FILE master/core/rounds.cc SEEDS 1000
  WHAT "too few nodes are waited for without a deadline"
  FIND [==[    job.join_deadline = paused != kNever ? paused : turn.now + spec.join_timeout_ms();]==]
  PUT [==[    job.join_deadline = paused != kNever ? paused : PLANTED ? kNever : turn.now + spec.join_timeout_ms();]==])

phx_plant(NAME away-for-ever FILE master/core/away.cc SEEDS 3000
  WHAT "members that do not come back to a new master are not given up"
  FIND [==[  if (away > 0) {
    GiveUpAway(turn);]==]
  PUT [==[  if (away > 0) {
    if (PLANTED) return static_cast<void>(job.back_by = kNever);
    GiveUpAway(turn);]==])

phx_plant(NAME yield-is-success FILE master/core/rescale.cc SEEDS 5000
  WHAT "a rank that ends to make room for the next round counts as done"
  FIND [==[  if (exit.for_rescale()) return true;]==]
  PUT [==[  if (exit.for_rescale()) return !PLANTED;]==])

phx_plant(NAME grace-never-ends FILE master/core/rescale.cc SEEDS 5000
  WHAT "ranks that do not come to a safe point hold a planned change up for ever"
  FIND [==[  round.rescale_by = turn.now + turn.job.spec->rescale_grace_ms();]==]
  PUT [==[  const int64_t grace_ms = PLANTED ? int64_t{1} << 40 : turn.job.spec->rescale_grace_ms();
  round.rescale_by = turn.now + grace_ms;]==])

phx_plant(NAME shards-of-the-dead-lost FILE master/topics/shards.cc SEEDS 500
  WHAT "shards that a dead rank held are not given out again"
  FIND [==[    for (const auto& [shard, holder] : dataset.given) dataset.waiting.insert(shard);]==]
  PUT [==[    for (const auto& [shard, holder] : dataset.given) {
      if (!PLANTED) dataset.waiting.insert(shard);
    }]==])

phx_plant(NAME shards-not-in-the-journal FILE master/core/shards.cc SEEDS 2000
  WHAT "a rank is given a shard that the journal knows nothing of"
  FIND [==[  turn.RememberFirst(Remember::When::kBefore);]==]
  PUT [==[  if (!PLANTED) turn.RememberFirst(Remember::When::kBefore);]==])

phx_plant(NAME shards-of-an-old-round FILE master/core/shards.cc SEEDS 5000 FIRST 1313
  WHAT "what ranks of a round that is over say of shards counts"
  FIND [==[  if (!turn.IsLive(epoch) || node.group_rank < 0) return nullptr;]==]
  PUT [==[  if ((PLANTED ? !turn.HasLiveRound() : !turn.IsLive(epoch)) || node.group_rank < 0) return nullptr;]==])

# --- agents ---

phx_plant(NAME no-redial FILE agent/core/core.cc SEEDS 500
  WHAT "an agent whose stream broke does not dial again"
  FIND [==[    s_.next_dial = now_ + s_.reconnect_ms;]==]
  PUT [==[    s_.next_dial = PLANTED ? kNever : now_ + s_.reconnect_ms;]==])

phx_plant(NAME starts-too-early FILE agent/core/core.cc SEEDS 500
  WHAT "a round's workers are started before the old groups are gone"
  FIND [==[    if (!s_.workers.empty()) return;
    if (s_.next) {]==]
  PUT [==[    if (!s_.workers.empty() && !(PLANTED && s_.next)) return;
    if (s_.next) {]==])

phx_plant(NAME lost-reply FILE agent/core/core.cc SEEDS 10000 FIRST 672
  WHAT "Ready is lost where it falls between Hello and Welcome"
  FIND [==[    if (s_.told_warming && !s_.warming) TellReady();]==]
  PUT [==[    if (!PLANTED && s_.told_warming && !s_.warming) TellReady();]==])

phx_plant(NAME told-once FILE agent/core/core.cc SEEDS 5000 FIRST 238
  WHAT "what a worker came to is not said again to a new master"
  FIND [==[    if (!s_.next && LiveRound(s_) != nullptr) TellAgain();]==]
  PUT [==[    if (!PLANTED && !s_.next && LiveRound(s_) != nullptr) TellAgain();]==])

phx_plant(NAME kill-never-comes FILE agent/core/core.cc SEEDS 500
  WHAT "workers that withstand SIGTERM are never killed"
  FIND [==[    if (now_ >= s_.kill_at) KillAll("the grace period is over");]==]
  PUT [==[    if (now_ >= s_.kill_at && PLANTED) s_.kill_at = kNever;
    if (now_ >= s_.kill_at) KillAll("the grace period is over");]==])

phx_plant(NAME wrong-exit-code FILE agent/core/core.cc SEEDS 500
  WHAT "an agent exits with 0 whatever the job came to"
  FIND [==[      ExitWith(s_.finish->exit_code(), s_.finish->reason());]==]
  PUT [==[      ExitWith(PLANTED ? 0 : s_.finish->exit_code(), s_.finish->reason());]==])

phx_plant(NAME zygote-not-replaced FILE agent/workers/spares.cc SEEDS 5000 FIRST 658
  WHAT "a zygote that dies leaves those who wait for its spares alone"
  FIND [==[  if (next_ == 0) return Replace(end, served);]==]
  PUT [==[  if (next_ == 0 && PLANTED) return;
  if (next_ == 0) return Replace(end, served);]==])

phx_plant(NAME name-asked-once FILE agent/core/joining.cc SEEDS 500
  WHAT "a node does not ask again for an endpoint that is not known yet"
  FIND [==[    s_.resolve_at = std::min(now_ + kResolveAgainMs, s_.resolve_until);]==]
  PUT [==[    if (!PLANTED) s_.resolve_at = std::min(now_ + kResolveAgainMs, s_.resolve_until);]==])

phx_plant(NAME second-master FILE agent/core/joining.cc SEEDS 500
  WHAT "a node starts a master of its own where that of the job is named"
  FIND [==[    if (event.hosting.here && !s_.options.has_own_master) {]==]
  PUT [==[    if (event.hosting.here && (PLANTED || !s_.options.has_own_master)) {]==])

phx_plant(NAME end-of-stream-missed FILE agent/core/leaving.cc SEEDS 500
  WHAT "a node that leaves does not hear that its stream has ended"
  FIND [==[    if (s_.phase == Phase::kClosing) LeaveMaster();]==]
  PUT [==[    if (s_.phase == Phase::kClosing && !PLANTED) LeaveMaster();]==])

phx_plant(NAME killed-master-stays-dead FILE agent/core/leaving.cc SEEDS 5000
  WHAT "a master that is killed at the job's end is not started again for those who have not heard of the end"
  FIND [==[    const bool told_all = !s_.begun.finished || !event.killed;]==]
  PUT [==[    const bool told_all = PLANTED || !s_.begun.finished || !event.killed;]==])

# --- checkpoints: the master ---

phx_plant(NAME commit-too-early FILE master/topics/checkpoints_saving.cc SEEDS 500
  WHAT "a save is committed when all nodes but one have sealed it"
  FIND [==[  if (AllIn(sessions)) Commit(name, dir, save);]==]
  PUT [==[  const bool almost = PLANTED && AllHere() && sessions.size() + 1 == s_.members.size();
  if (almost || AllIn(sessions)) Commit(name, dir, save);]==])

phx_plant(NAME torn-save-restored FILE master/topics/checkpoints_held.cc SEEDS 500
  WHAT "a save that some rank had not sealed is restored from memory"
  FIND [==[  return complete || was_committed ? "" : "some rank had not sealed it";]==]
  PUT [==[  return PLANTED || complete || was_committed ? "" : "some rank had not sealed it";]==])

phx_plant(NAME storage-before-memory FILE master/topics/checkpoints_restoring.cc SEEDS 500
  WHAT "a step on storage is restored where memory has a later one"
  FIND [==[(!memory || IsNewerOnDisk(dir));]==]
  PUT [==[(PLANTED || !memory || IsNewerOnDisk(dir));]==])

phx_plant(NAME manifest-too-early FILE master/topics/checkpoints_storing.cc SEEDS 500
  WHAT "the manifest is written while one node still writes its shards"
  FIND [==[  if (!store.unwritten.empty()) return;]==]
  PUT [==[  if (store.unwritten.size() > (PLANTED ? 1 : 0)) return;]==])

phx_plant(NAME store-never-ends FILE master/topics/checkpoints.cc SEEDS 1000
  WHAT "a store whose writer was lost goes on for ever"
  FIND [==[    if (dir.store) LoseWriter(name, dir, session);]==]
  PUT [==[    if (dir.store && !PLANTED) LoseWriter(name, dir, session);]==])

phx_plant(NAME doubted-too-soon FILE master/topics/doubts.cc SEEDS 3000
  WHAT "a save is passed over a life before it may be"
  FIND [==[ && FailedLives(doubts) >= lives;]==]
  PUT [==[ && FailedLives(doubts) + (PLANTED ? 1 : 0) >= lives;]==])

phx_plant(NAME steps-do-not-clear FILE master/topics/doubts.cc SEEDS 3000
  WHAT "lives that made steps count against the save that they went on from"
  FIND [==[  doubts.before_failure.reset();
  if (end]==]
  PUT [==[  doubts.before_failure.reset();
  if (PLANTED && end == LifeEnd::kStepped) end = LifeEnd::kFailed;
  if (end]==])

phx_plant(NAME never-trusted-again FILE master/topics/doubts.cc SEEDS 8000 FIRST 4465
  WHAT "a job begins anew beside a save in memory that lives got nowhere with"
  FIND [==[  if (doubts.kept.saves.empty()) return false;]==]
  PUT [==[  if (doubts.kept.saves.empty() || PLANTED) return false;]==])

phx_plant(NAME lender-not-awaited FILE master/topics/checkpoints_memory.cc SEEDS 5000 FIRST 1390
  WHAT "what a node holds that goes does not count, though it is here and lends it"
  FIND [==[  if (!all_lenders && !MembersSuffice(found)) return;]==]
  PUT [==[  if (!PLANTED && !all_lenders && !MembersSuffice(found)) return;]==])

# --- checkpoints: agents and their memory ---

phx_plant(NAME answer-awaited-for-ever FILE agent/checkpoint/checkpoints.cc SEEDS 1000 FIRST 403
  WHAT "a rank that asks what to restore, or for an image, waits for a master that has ended"
  FIND [==[  silence_ = why;]==]
  PUT [==[  if (PLANTED) return;
  silence_ = why;]==])

phx_plant(NAME silence-never-ends FILE agent/checkpoint/checkpoints.cc SEEDS 3000 FIRST 1233
  WHAT "what to restore is refused although a master is back"
  FIND [==[  silence_.clear();]==]
  PUT [==[  if (!PLANTED) silence_.clear();]==])

phx_plant(NAME wait-forgotten FILE agent/checkpoint/checkpoints.cc SEEDS 500
  WHAT "ranks that wait for storage are not told that it has taken their step"
  FIND [==[    return SettleWaits(dir);]==]
  PUT [==[    if (PLANTED) return;
    return SettleWaits(dir);]==])

phx_plant(NAME asked-once FILE agent/checkpoint/checkpoints.cc SEEDS 5000 FIRST 251
  WHAT "a new master is not asked again what to restore"
  FIND [==[!dir.decided.contains(*dir.restore_asked)) TellRestoreAsked]==]
  PUT [==[!dir.decided.contains(*dir.restore_asked) && !PLANTED) TellRestoreAsked]==])

phx_plant(NAME nobody-writes-the-state FILE agent/checkpoint/checkpoints.cc SEEDS 3000
  WHAT "the shared image is written by nobody"
  FIND [==[dir.folders.contains(folder)});]==]
  PUT [==[!PLANTED && dir.folders.contains(folder)});]==])

phx_plant(NAME part-nowhere FILE master/topics/checkpoints_held.cc SEEDS 3000
  WHAT "sharded state is restored from memory though a rank's part of it is lost"
  FIND [==[      if (ranks.contains(rank)) {]==]
  PUT [==[      if (PLANTED) continue;
      if (ranks.contains(rank)) {]==])

phx_plant(NAME one-reader FILE checkpoint/memory/pages.cc SEEDS 12000 FIRST 2599
  WHAT "the first of two stores of one save to end lets its slot go"
  FIND [==[ --page->readers[image.slot] > 0) return;]==]
  PUT [==[ (--page->readers[image.slot] > 0 && !PLANTED)) return;]==])

phx_plant(NAME newest-deleted FILE checkpoint/disk/retention.cc SEEDS 500
  WHAT "with keep_last=1 the step that was just stored is deleted"
  FIND [==[(kept.size() < last || due)) {]==]
  PUT [==[(kept.size() + (PLANTED ? 1 : 0) < last || due)) {]==])

phx_plant(NAME archive-has-the-newest-alone FILE checkpoint/disk/archive.cc SEEDS 2000
  WHAT "of the steps that are to be in the archive all but the newest count as if they were"
  FIND [==[    if (every <= 0) break;]==]
  PUT [==[    if (every <= 0 || PLANTED) break;]==])

phx_plant(NAME bad-node-trains FILE master/core/checks.cc SEEDS 1000
  WHAT "a node that has failed its check is let in"
  FIND [==[      if (!n.departs || !why.empty()) n.left_out = why;]==]
  PUT [==[      if (!n.departs || !why.empty()) n.left_out = PLANTED ? "" : why;]==])

phx_plant(NAME partner-blamed FILE master/topics/health.cc SEEDS 1000 FIRST 312
  WHAT "both nodes of a pair that fails are called bad at once"
  FIND [==[    run_.suspects.Note({first, second}, group.failed.empty());]==]
  PUT [==[    run_.suspects.Note({first, second}, group.failed.empty());
    if (PLANTED && !group.failed.empty()) {
      run_.suspects.Condemn(first);
      run_.suspects.Condemn(second);
    }]==])

phx_plant(NAME quick-rank-named FILE master/rules/pace.cc SEEDS 1000
  WHAT "of two ranks the quicker one counts as slow"
  FIND [==[    const int64_t lag = OwnUs(rank) - usual;]==]
  PUT [==[    const int64_t lag = PLANTED ? usual - OwnUs(rank) + 2 * usual : OwnUs(rank) - usual;]==])

phx_plant(NAME windows-forgotten FILE master/rules/pace.cc SEEDS 1000 FIRST 421
  WHAT "a rank's slow windows are never in a row"
  FIND [==[  rank.slow = is_slow ? rank.slow + 1 : 0;]==]
  PUT [==[  rank.slow = is_slow && !PLANTED ? rank.slow + 1 : 0;]==])

# --- who takes the job up when its master is lost ---

phx_plant(NAME elected-by-half FILE master/core/election.cc SEEDS 50 SUCCESSION
  WHAT "half of the nodes that trained last elect a master"
  FIND [==[    return has_host && Count().AreMost();
  }

  Electorate Count() const {
    std::vector<const v1::Hello*> hellos;
    for (const auto& [session, early] : c_.early) hellos.push_back(&early.message.hello());
    Electorate all = ElectorateOf(hellos);
    // Who has come may have gone since, unheard, to the master before: until a round is confirmed more than half of the
    // last one are needed, for that master may go on with the other half.
    all.strict = true;]==]
  PUT [==[    return has_host && (PLANTED ? Count().confirmed.MayDecide() : Count().AreMost());
  }

  Electorate Count() const {
    std::vector<const v1::Hello*> hellos;
    for (const auto& [session, early] : c_.early) hellos.push_back(&early.message.hello());
    Electorate all = ElectorateOf(hellos);
    // Who has come may have gone since, unheard, to the master before: until a round is confirmed more than half of the
    // last one are needed, for that master may go on with the other half.
    all.strict = !PLANTED;]==])

phx_plant(NAME ended-at-any-time FILE master/core/election.cc SEEDS 1400 FIRST 1290 SUCCESSION
  WHAT "a node that is found to have ended late does not count, and had voted"
  FIND [==[if (c_.may_have_ended) c_.agent_is_gone =]==]
  PUT [==[if (PLANTED || c_.may_have_ended) c_.agent_is_gone =]==])

phx_plant(NAME the-few-decide FILE master/core/succession.cc SEEDS 500 SUCCESSION
  WHAT "a master that is cut off from most of its nodes begins rounds"
  FIND [==[return !HasSuccession(job) || job.voters.MayDecide(); }

bool MayDecide(const JobState& job, const std::vector<uint64_t>& members) {
  if (!HasSuccession(job)) return true;]==]
  PUT [==[return PLANTED || !HasSuccession(job) || job.voters.MayDecide(); }

bool MayDecide(const JobState& job, const std::vector<uint64_t>& members) {
  if (PLANTED || !HasSuccession(job)) return true;]==])

phx_plant(NAME one-confirms-for-all FILE master/core/succession.cc SEEDS 100 SUCCESSION
  WHAT "a round counts as confirmed when the first of its nodes has confirmed it"
  FIND [==[  if (++job.round->slots_confirmed < job.round->slots.size()) return;]==]
  PUT [==[  if (++job.round->slots_confirmed < job.round->slots.size() && !PLANTED) return;]==])

phx_plant(NAME never-steps-aside FILE master/core/succession.cc SEEDS 50 SUCCESSION
  WHAT "a master that is told of a later one goes on"
  FIND [==[  job.moved_to = hello.master();
  job.moved_term = hello.term();
  const auto message]==]
  PUT [==[  if (PLANTED) return true;
  job.moved_to = hello.master();
  job.moved_term = hello.term();
  const auto message]==])
