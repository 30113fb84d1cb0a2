package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Memory is what outlives pods and operator.
type Memory struct {
	Roles    map[string]RoleMemory
	Ranks    map[RankKey]RankMemory // those that have had more than one pod
	Excluded []Exclusion            // by host
	Outcome  *Outcome               // of a job that has ended
}

// RoleMemory is what was given out within a role.
type RoleMemory struct {
	NextID  int32 // no pod has had it, or a higher one
	Started int32 // ranks below have had a pod, at the present size and since the job was resumed
}

// RankKey names a rank of a role.
type RankKey struct {
	Role string
	Rank int32
}

// RankMemory is what a rank has been through.
type RankMemory struct {
	Ends   Counts
	LastID int32 // of its newest pod; that pod may be gone
}

// Exclusion is a host that gets no pod of this job for a while.
type Exclusion struct {
	Host   string
	Until  time.Time
	Reason string
	// Refused: the host is avoided as it refuses pods, and nobody says that it is bad.
	Refused bool
}

// Outcome is how a job has ended.
type Outcome struct {
	Success bool
	Reason  string // one word
	Message string // a sentence
}

// Fold adds to a memory what can be seen, and returns the result. Folding the same pods again changes nothing.
func Fold(memory Memory, pods []Pod, desired Desired, policy Policy, now time.Time) Memory {
	folded := Memory{
		Roles:   map[string]RoleMemory{},
		Ranks:   maps.Clone(memory.Ranks),
		Outcome: memory.Outcome,
	}
	if folded.Ranks == nil {
		folded.Ranks = map[RankKey]RankMemory{}
	}
	maps.Copy(folded.Roles, memory.Roles)
	for i := range pods {
		foldPod(&folded, &pods[i])
	}
	for _, role := range desired.Roles {
		foldStarted(&folded, role, pods, desired.Suspended)
	}
	folded.Excluded = foldExcluded(memory.Excluded, pods, policy, now)
	return folded
}

func foldPod(memory *Memory, pod *Pod) {
	role := memory.Roles[pod.Role]
	role.NextID = max(role.NextID, pod.ID+1)
	memory.Roles[pod.Role] = role
	key := RankKey{pod.Role, pod.Rank}
	rank, known := memory.Ranks[key]
	if !known && pod.Before.Total() == 0 {
		return
	}
	memory.Ranks[key] = RankMemory{Ends: rank.Ends.Merge(pod.Before), LastID: max(rank.LastID, pod.ID)}
}

// foldStarted: a rank that has had a pod and has none now has lost it. Ranks that a smaller size or a suspension has
// ended begin anew.
func foldStarted(memory *Memory, role Role, pods []Pod, suspended bool) {
	kept := memory.Roles[role.Name]
	if suspended {
		kept.Started = 0
		memory.Roles[role.Name] = kept
		return
	}
	held := map[int32]bool{}
	for i := range pods {
		pod := &pods[i]
		newest := pod.ID >= memory.Ranks[RankKey{pod.Role, pod.Rank}].LastID
		if pod.Role == role.Name && !pod.Leaving && newest {
			held[pod.Rank] = true
		}
	}
	kept.Started = min(kept.Started, role.Replicas)
	for kept.Started < role.Replicas && held[kept.Started] {
		kept.Started++
	}
	memory.Roles[role.Name] = kept
}

// refusing are the hosts that have refused the newest pods of a rank, so many in a row: the scheduler, which does not
// know why a kubelet refuses, would send them the next ones as well.
func refusing(pods []Pod, policy Policy) []Exclusion {
	byRank := map[RankKey][]*Pod{}
	for i := range pods {
		key := RankKey{pods[i].Role, pods[i].Rank}
		byRank[key] = append(byRank[key], &pods[i])
	}
	var hosts []Exclusion
	for _, all := range byRank {
		slices.SortFunc(all, func(a, b *Pod) int { return cmp.Compare(b.ID, a.ID) })
		newest, oldest, row := all[0], all[0], int32(0)
		for _, pod := range all {
			if pod.State != Failed || !pod.End.Refused || pod.Host != newest.Host {
				break
			}
			oldest = pod
			row++
		}
		row = min(row, newest.Unbegun+1) // others may have begun between, and be gone
		if row < policy.Refusals || newest.Host == "" || newest.End.At.Sub(oldest.End.At) < policy.RefusedOver {
			continue
		}
		hosts = append(hosts, Exclusion{
			Host: newest.Host, Until: newest.End.At.Add(policy.RefusedFor), Refused: true,
			Reason: fmt.Sprintf("%s: refused by the node, as %d before it: %s", newest.Name, row-1, newest.End.Disruption),
		})
	}
	return hosts
}

// foldExcluded takes the hosts that pods blame, forgets them after a while, and keeps the newest within the cap.
func foldExcluded(excluded []Exclusion, pods []Pod, policy Policy, now time.Time) []Exclusion {
	byHost := map[string]Exclusion{}
	add := func(exclusion Exclusion) {
		before, known := byHost[exclusion.Host]
		if known && exclusion.Refused != before.Refused {
			if exclusion.Refused {
				return // that it is bad says more
			}
			before.Until = time.Time{}
		}
		if exclusion.Until.After(now) && exclusion.Until.After(before.Until) {
			byHost[exclusion.Host] = exclusion
		}
	}
	for _, exclusion := range excluded {
		add(exclusion)
	}
	for i := range pods {
		pod := &pods[i]
		if pod.State != Failed && pod.Unfit == "" || pod.Host == "" {
			continue
		}
		at := pod.End.At
		if pod.Unfit != "" {
			if before, known := byHost[pod.Host]; known && !before.Refused {
				continue
			}
			at = now
		}
		if class, why := Classify(pod); class == Hardware {
			add(Exclusion{Host: pod.Host, Until: at.Add(policy.ExcludedFor), Reason: pod.Name + ": " + why})
		}
	}
	for _, exclusion := range refusing(pods, policy) {
		add(exclusion)
	}
	newest := slices.SortedFunc(maps.Values(byHost), func(a, b Exclusion) int {
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.Host, b.Host))
	})
	newest = newest[:min(len(newest), policy.ExcludedMax)]
	slices.SortFunc(newest, func(a, b Exclusion) int { return cmp.Compare(a.Host, b.Host) })
	return newest
}
