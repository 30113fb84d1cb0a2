package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// view is a role as it is, against what is wanted.
type view struct {
	role      Role
	succeeded int32 // ranks that are done
	running   int32
	blocked   *Pod // the one that has been longest
	verdict   *Outcome
	surplus   []Action // deletions
	old       []Action // deletions of pods that have failed long ago
	drains    []Drain
	vacancies []vacancy
}

// vacancy is a rank that needs a pod.
type vacancy struct {
	rank    int32
	ends    Counts
	unbegun int32     // pods in a row that have failed and had not begun
	due     time.Time // when it gets its next one; zero: now
	reason  string    // why its pod is lost; empty for its first one
	over    string    // why it gets none, where its budget is used up
	at      time.Time // of that end
}

func look(role Role, observed Observed, memory Memory, policy Policy, now time.Time) view {
	pods := observed.Pods
	view := view{role: role}
	byRank := map[int32][]*Pod{}
	for i := range pods {
		if pods[i].Role == role.Name {
			byRank[pods[i].Rank] = append(byRank[pods[i].Rank], &pods[i])
		}
	}
	avoided := avoided(memory, observed.Going)
	for _, rank := range slices.Sorted(maps.Keys(byRank)) {
		view.settle(rank, byRank[rank], avoided, policy, now)
		view.forget(rank, byRank[rank], policy)
	}
	slices.Reverse(view.surplus) // the highest ranks go first
	for rank := range role.Replicas {
		view.fill(rank, byRank[rank], memory, policy)
	}
	return view
}

// settle leaves a rank one live pod at most, and none where the role is smaller. `avoided` are the hosts that a pod
// made now is kept off.
func (v *view) settle(rank int32, pods []*Pod, avoided []string, policy Policy, now time.Time) {
	var keep *Pod
	for _, pod := range pods {
		if pod.Live() && pod.Unfit == "" && rank < v.role.Replicas && better(pod, keep) {
			keep = pod
		}
	}
	for _, pod := range pods {
		switch {
		case !pod.Live() || pod == keep:
		case pod.Unfit != "" && rank < v.role.Replicas:
			v.surplus = append(v.surplus, Delete{Pod: *pod, Reason: "its node is unfit: " + pod.Unfit})
		case keep == nil:
			v.release(pod, fmt.Sprintf("%s has %d replicas now", v.role.Name, v.role.Replicas), policy, now)
		default:
			reason := fmt.Sprintf("%s holds rank %d as well", keep.Name, rank)
			v.surplus = append(v.surplus, Delete{Pod: *pod, Reason: reason})
		}
	}
	if keep == nil {
		return
	}
	if free := freed(keep, avoided); free != "" {
		reason := fmt.Sprintf("there is no place for it, and it is kept off %s, which is avoided no more", free)
		v.surplus = append(v.surplus, Delete{Pod: *keep, Reason: reason})
	}
	if keep.Notice != "" && !v.role.Decides { // the master says that the others of its node may go
		v.release(keep, keep.Notice, policy, now)
	}
	if keep.State == Running {
		v.running++
	}
	if keep.Blocked.Reason != "" && (v.blocked == nil || keep.Blocked.Since.Before(v.blocked.Blocked.Since)) {
		v.blocked = keep
	}
}

// freed is a host that a pod without a place is kept off though nothing is the matter with it any more; empty: there is
// none. What a pod requires of its host cannot be changed, and another pod may find that place.
func freed(pod *Pod, avoided []string) string {
	if !pod.NoPlace || pod.Host != "" {
		return ""
	}
	for _, host := range pod.Avoids {
		if !slices.Contains(avoided, host) {
			return host
		}
	}
	return ""
}

// forget deletes the pods of a rank that have failed, but for the newest ones; and those that hold their node's devices
// though their program has ended, once that end is written on the next one, or there is to be none.
func (v *view) forget(rank int32, pods []*Pod, policy Policy) {
	var failed []*Pod
	newest := slices.MaxFunc(pods, func(a, b *Pod) int { return cmp.Compare(a.ID, b.ID) })
	for _, pod := range pods {
		switch {
		case pod.Leaving:
		case pod.Lingers && (pod != newest || rank >= v.role.Replicas):
			v.old = append(v.old, Delete{Pod: *pod, Reason: "its program has ended, and others of its containers run on"})
		case pod.State == Failed && !pod.Lingers:
			failed = append(failed, pod)
		}
	}
	slices.SortFunc(failed, func(a, b *Pod) int { return cmp.Compare(b.ID, a.ID) })
	for _, pod := range failed[min(len(failed), policy.KeptFailed):] {
		reason := fmt.Sprintf("%d newer pods of rank %d have failed", policy.KeptFailed, rank)
		v.old = append(v.old, Delete{Pod: *pod, Reason: reason})
	}
}

// release deletes a pod that is not wanted any more, or not where it is, once the job's master does without it, or has
// taken too long; at once where the job has no master that says so. A stream that has broken, or an operator that has
// just begun, is no reason to be quicker: the pod trains on.
func (v *view) release(pod *Pod, why string, policy Policy, now time.Time) {
	until := now.Add(policy.DrainFor)
	if !pod.DrainSince.IsZero() {
		until = pod.DrainSince.Add(policy.DrainFor)
	}
	if !pod.Answered || pod.Released || pod.State != Running || !until.After(now) {
		v.surplus = append(v.surplus, Delete{Pod: *pod, Reason: why})
		return
	}
	v.drains = append(v.drains, Drain{*pod, why, until})
}

// better: of two live pods of a rank the one that works stays, else the newer one.
func better(pod, than *Pod) bool {
	if than == nil {
		return true
	}
	if pod.Ready != than.Ready {
		return pod.Ready
	}
	return pod.ID > than.ID
}

// fill finds out whether a rank of the role needs a pod, and what that costs.
func (v *view) fill(rank int32, pods []*Pod, memory Memory, policy Policy) {
	known := memory.Ranks[RankKey{v.role.Name, rank}]
	var newest *Pod
	for _, pod := range pods {
		if pod.Live() && pod.Unfit == "" {
			return
		}
		if newest == nil || pod.ID > newest.ID {
			newest = pod
		}
	}
	if newest != nil && newest.ID < known.LastID {
		newest = nil // what is left is older than the pod that is missing
	}
	if newest != nil && newest.State == Succeeded {
		v.succeed(newest)
		return
	}
	if rank >= memory.Roles[v.role.Name].Started && (newest == nil || newest.Leaving) {
		v.vacancies = append(v.vacancies, vacancy{rank: rank, ends: known.Ends})
		return
	}
	if newest == nil {
		v.vacancies = append(v.vacancies, vacancy{
			rank: rank, ends: known.Ends.With(Deleted), reason: fmt.Sprintf("rank %d's pod is gone", rank),
		})
		return
	}
	v.vacancies = append(v.vacancies, v.charge(newest, known.Ends, policy))
}

func (v *view) succeed(pod *Pod) {
	v.succeeded++
	if v.role.Decides {
		v.verdict = &Outcome{true, "MasterSucceeded", pod.Name + " has succeeded"}
	}
}

// charge books the end of a pod on its rank.
func (v *view) charge(pod *Pod, ends Counts, policy Policy) vacancy {
	class, why := Classify(pod)
	if class == Killed && ends[Killed] >= policy.KilledFree {
		class = Application
	}
	sentence := fmt.Sprintf("%s (rank %d): %s", pod.Name, pod.Rank, why)
	if pod.End.Detail != "" {
		sentence += ": " + pod.End.Detail
	}
	if v.role.Decides && class == Application && pod.End.ExitCode == 1 {
		v.verdict = &Outcome{false, "MasterFailed", sentence}
	}
	found := vacancy{rank: pod.Rank, ends: ends.With(class), reason: sentence, at: pod.End.At}
	if pod.State == Failed && !pod.Began {
		found.unbegun = pod.Unbegun + 1
		found.due = pod.End.At.Add(policy.retryAfter(found.unbegun))
	}
	if limit, limited := v.role.Limits[class]; limited && ends[class] >= limit {
		found.over = fmt.Sprintf("%s; %s ends of this rank until now: %d, and %d are allowed", sentence, class,
			ends[class]+1, limit)
	}
	return found
}

// retryAfter is how long behind so many pods that had not begun the next one comes.
func (p Policy) retryAfter(unbegun int32) time.Duration {
	after := p.RetryMin
	for ; unbegun > 1 && after < p.RetryMax; unbegun-- {
		after *= 2
	}
	return min(after, p.RetryMax)
}

// Limits are the budgets of a rank whose restartCount is given.
func (p Policy) Limits(restartCount int32) map[Class]int32 {
	return map[Class]int32{
		Application: restartCount,
		OutOfMemory: cmp.Or(restartCount, 1),
		Hardware:    p.HardwareEnds,
	}
}
