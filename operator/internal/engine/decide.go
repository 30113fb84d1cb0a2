package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Observed is a job as it is.
type Observed struct {
	Pods   []Pod
	Memory Memory
	Going  []string // hosts that are about to go, whoever is there
}

// Desired is a job as it is wanted.
type Desired struct {
	Roles     []Role
	Suspended bool
}

// Role is what is wanted of one role.
type Role struct {
	Name     string
	Replicas int32
	// Limits is how many ends of a class a rank survives. Classes that are not in it have no limit.
	Limits map[Class]int32
	// Decides: the success of its pod is the job's, and so is its exit code 1.
	Decides bool
}

// Replicas is how many pods a role is to have; of a suspended job none.
func (d Desired) Replicas(role string) int32 {
	for _, one := range d.Roles {
		if one.Name == role && !d.Suspended {
			return one.Replicas
		}
	}
	return 0
}

// Policy is what is the same for all jobs of an operator.
type Policy struct {
	KilledFree  int32         // unexplained signals of a rank that cost nothing; further ones count as Application
	BlockedFor  time.Duration // how long a job waits for pods that cannot start while none of their role runs
	ExcludedFor time.Duration
	ExcludedMax int
	// ForceDeleteAfter is how long past its grace a pod may leave a node that is not ready, before it is removed all the
	// same; 0: for ever. The node may run it on, and what it writes then meets what its successor writes.
	ForceDeleteAfter time.Duration
	HardwareEnds     int32         // a rank's ends by Hardware, all on different nodes, that a job survives
	DrainFor         time.Duration // how long the job's master may take to do without a pod that is to go
	// RetryMin is how long a rank waits for its next pod when one has failed that had not begun; for each further one
	// twice as long, up to RetryMax. A node that refuses pods would else be sent new ones without end.
	RetryMin, RetryMax time.Duration
	// Refusals is how many pods in a row of one rank a host refuses, over RefusedOver at least, before the job avoids it
	// for RefusedFor: a kubelet that has just begun, or has no room for a moment, is none such.
	Refusals    int32
	RefusedOver time.Duration
	RefusedFor  time.Duration
	KeptFailed  int // pods of a rank that have failed and stay for their logs, the newest ones
}

// DefaultPolicy is that of the operator where nothing else is said.
func DefaultPolicy() Policy {
	return Policy{
		KilledFree:   3,
		BlockedFor:   10 * time.Minute,
		ExcludedFor:  24 * time.Hour,
		ExcludedMax:  64,
		HardwareEnds: 16,
		DrainFor:     time.Minute,
		RetryMin:     time.Second,
		RetryMax:     5 * time.Minute,
		Refusals:     3,
		RefusedOver:  30 * time.Second,
		RefusedFor:   30 * time.Minute,
		KeptFailed:   3,
	}
}

// Action is one of Create, Delete, Drain, Finish and Wake.
type Action interface{ action() }

// Drain asks the job's master to do without a pod, which is deleted once it does.
type Drain struct {
	Pod    Pod
	Reason string
	Until  time.Time // then it is deleted in any case
}

// Create asks for a pod.
type Create struct {
	Role string
	ID   int32
	Rank int32
	// To be written on the pod: the ends of its rank before it, and how many pods in a row had not begun.
	Before  Counts
	Unbegun int32
	Avoid   []string // hosts that were blamed, or are about to go
	Reason  string   // empty for a rank's first pod
}

// Delete asks for the deletion of a pod, with its own grace period.
type Delete struct {
	Pod    Pod
	Reason string
	Force  bool // without: its node will not say that it has ended
}

// Finish says that the job has ended.
type Finish struct{ Outcome Outcome }

// Wake asks to decide again at a time, even if nothing happens until then.
type Wake struct{ At time.Time }

func (Create) action() {}
func (Delete) action() {}
func (Drain) action()  {}
func (Finish) action() {}
func (Wake) action()   {}

// Decide says what to do for a job, in order. The same arguments give the same actions.
func Decide(observed Observed, desired Desired, policy Policy, now time.Time) []Action {
	memory := Fold(observed.Memory, observed.Pods, desired, policy, now)
	forced, wakeAt := force(observed.Pods, policy, now)
	wakeAt = earlier(wakeAt, firstEnd(memory.Excluded))
	if memory.Outcome != nil {
		return wake(append(forced, deleteLive(observed.Pods, "the job has ended")...), wakeAt)
	}
	if desired.Suspended {
		return wake(append(forced, deleteLive(observed.Pods, "the job is suspended")...), wakeAt)
	}
	views := make([]view, 0, len(desired.Roles))
	for _, role := range desired.Roles {
		views = append(views, look(role, observed, memory, policy, now))
	}
	if outcome := ended(views, policy, now); outcome != nil {
		return append([]Action{Finish{*outcome}}, deleteLive(observed.Pods, "the job has ended")...)
	}
	actions := forced
	for i := range views {
		for _, drain := range views[i].drains {
			actions = append(actions, drain)
		}
		actions = append(actions, views[i].surplus...)
		actions = append(actions, views[i].old...)
	}
	for i := range views {
		actions = append(actions, creations(&views[i], memory, observed.Going, now)...)
	}
	return wake(actions, earlier(nextOf(views, policy, now), wakeAt))
}

// wake adds a time to actions, where there is one.
func wake(actions []Action, at time.Time) []Action {
	if at.IsZero() {
		return actions
	}
	return append(actions, Wake{at})
}

// earlier is the first of two times; a zero one is none.
func earlier(one, other time.Time) time.Time {
	if one.IsZero() || !other.IsZero() && other.Before(one) {
		return other
	}
	return one
}

// firstEnd is when the first host is avoided no more; zero: none is avoided.
func firstEnd(excluded []Exclusion) time.Time {
	var first time.Time
	for _, exclusion := range excluded {
		first = earlier(first, exclusion.Until)
	}
	return first
}

// avoided are the hosts that get no pod now: those that were blamed, and those that are about to go.
func avoided(memory Memory, going []string) []string {
	hosts := slices.Clone(going)
	for _, exclusion := range memory.Excluded {
		if !slices.Contains(going, exclusion.Host) {
			hosts = append(hosts, exclusion.Host)
		}
	}
	return hosts
}

// force removes the pods that no node will end. The time is when the next of them is due; zero: never.
func force(pods []Pod, policy Policy, now time.Time) ([]Action, time.Time) {
	var (
		actions []Action
		next    time.Time
	)
	for i := range pods {
		pod := &pods[i]
		due := pod.GoesAt.Add(policy.ForceDeleteAfter)
		// Of a deletion that was only just asked for nobody knows its grace yet.
		silent := pod.Leaving && pod.Node == NodeNotReady && policy.ForceDeleteAfter > 0 && !pod.GoesAt.IsZero()
		switch {
		case pod.Node == NodeGone && (pod.Leaving || !pod.ended()):
			actions = append(actions, Delete{Pod: *pod, Reason: "its node is no more", Force: true})
		case silent && !now.Before(due):
			reason := fmt.Sprintf("it has been leaving a node that is not ready since %s", pod.GoesAt.UTC().Format(time.RFC3339))
			actions = append(actions, Delete{Pod: *pod, Reason: reason, Force: true})
		case silent:
			next = earlier(next, due)
		}
	}
	return actions, next
}

func deleteLive(pods []Pod, reason string) []Action {
	var actions []Action
	for i := range pods {
		if pods[i].Live() || pods[i].Lingers && !pods[i].Leaving {
			actions = append(actions, Delete{Pod: pods[i], Reason: reason})
		}
	}
	return actions
}

// creations gives out ids in the order of ranks, to those whose time has come.
func creations(view *view, memory Memory, going []string, now time.Time) []Action {
	var actions []Action
	avoid := avoided(memory, going)
	id := memory.Roles[view.role.Name].NextID
	for _, vacancy := range view.vacancies {
		if vacancy.due.After(now) {
			continue
		}
		actions = append(actions, Create{
			Role: view.role.Name, ID: id, Rank: vacancy.rank, Before: vacancy.ends, Unbegun: vacancy.unbegun, Avoid: avoid,
			Reason: vacancy.reason,
		})
		id++
	}
	return actions
}

// ended says whether, by what is there, the job is over.
func ended(views []view, policy Policy, now time.Time) *Outcome {
	for i := range views {
		if outcome := views[i].verdict; outcome != nil {
			return outcome
		}
	}
	for i := range views {
		view := &views[i]
		if !view.role.Decides && view.role.Replicas > 0 && view.succeeded == view.role.Replicas {
			return &Outcome{true, "WorkersSucceeded",
				fmt.Sprintf("all %d pods of %s have succeeded", view.succeeded, view.role.Name)}
		}
	}
	if outcome := exhausted(views); outcome != nil {
		return outcome
	}
	for i := range views {
		view := &views[i]
		blocked := view.blocked
		if blocked != nil && view.running == 0 && !now.Before(blocked.Blocked.Since.Add(policy.BlockedFor)) {
			return &Outcome{false, "StartBlocked", fmt.Sprintf("%s cannot start since %s: %s", blocked.Name,
				blocked.Blocked.Since.UTC().Format(time.RFC3339), blocked.Blocked.Reason)}
		}
	}
	return nil
}

// exhausted blames the rank that ended first: the others may be its victims.
func exhausted(views []view) *Outcome {
	var over []vacancy
	for i := range views {
		for _, vacancy := range views[i].vacancies {
			if vacancy.over != "" {
				over = append(over, vacancy)
			}
		}
	}
	if len(over) == 0 {
		return nil
	}
	first := slices.MinFunc(over, func(a, b vacancy) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.rank, b.rank))
	})
	return &Outcome{false, "RestartsExhausted", first.over}
}

// nextOf is when something of a role falls due; zero: nothing does.
func nextOf(views []view, policy Policy, now time.Time) time.Time {
	var at time.Time
	for i := range views {
		view := &views[i]
		for _, drain := range view.drains {
			at = earlier(at, drain.Until)
		}
		for _, vacancy := range view.vacancies {
			if vacancy.due.After(now) {
				at = earlier(at, vacancy.due)
			}
		}
		if view.blocked == nil || view.running > 0 {
			continue
		}
		deadline := view.blocked.Blocked.Since.Add(policy.BlockedFor)
		if deadline.After(now) {
			at = earlier(at, deadline)
		}
	}
	return at
}
