package engine

import (
	"fmt"
	"time"
)

// State is how far a pod has come.
type State int

const (
	Pending State = iota
	Running
	Succeeded
	Failed
)

// Pod is one pod, as far as decisions need it.
type Pod struct {
	Name    string
	UID     string
	Role    string
	ID      int32
	Rank    int32
	State   State
	Began   bool // its program has run
	Ready   bool
	Lingers bool      // its program has ended by itself, and others of its containers run on
	Leaving bool      // somebody has asked for its deletion
	GoesAt  time.Time // when it is killed, where it is leaving; zero: nobody knows that yet
	Host    string    // empty until it is scheduled
	Node    Node      // how that host is
	Notice  string    // why that host is about to go, where somebody has said so
	End     End       // what is known of its end, for a pod that has failed or is leaving
	Blocked Blocked
	Waiting string   // why it has no place yet, while that is so
	NoPlace bool     // the scheduler has looked for one, and finds none
	Avoids  []string // hosts that it was kept off when it was made
	Before  Counts   // the ends of its rank before this pod, as written on it
	Unbegun int32    // pods of its rank just before it that have failed and had not begun, as written on it

	// What the job's master says of it.
	Address       string    // empty until it has one
	HostAddresses []string  // of its node
	Answered      bool      // the job has a master that says when it does without the pod: now, or once it is heard again
	Released      bool      // it trains no more, and can be deleted
	Unfit         string    // why its node is; empty: it is not
	DrainSince    time.Time // the master was told so long ago that it is to go; zero: it was not
}

// Goes says that the cluster is about to end the pod, why, and when.
func (p *Pod) Goes() (why string, at time.Time, goes bool) {
	if p.State != Running {
		return "", time.Time{}, false
	}
	if p.End.Disruption != "" {
		return p.End.Disruption, p.GoesAt, true
	}
	return "deleted", p.GoesAt, p.Leaving
}

// End is what is known of how a pod ended.
type End struct {
	Disruption  string // the cluster's reason, as PreemptionByScheduler or Evicted
	Refused     bool   // by the kubelet of its host, before it began
	OverLimits  bool   // the kubelet has ended it for what it took itself, of its disk, say
	OutOfMemory bool
	Exited      bool // ExitCode means something
	ExitCode    int32
	Detail      string // last words, for people
	At          time.Time
}

// Blocked is why a pod cannot start, where waiting does not help, as a wrong image.
type Blocked struct {
	Reason string    // empty: nothing is in its way
	Since  time.Time // that was first seen
}

// Node is how the node of a pod is.
type Node int

const (
	NodeReady    Node = iota // or nobody knows better
	NodeNotReady             // nobody hears of it; it may come back, and its pods may train all the time
	NodeGone                 // it is no more, and nobody will end its pods
)

// Live says that the pod is there and has not ended.
func (p *Pod) Live() bool { return !p.Leaving && p.Node != NodeGone && !p.ended() }

func (p *Pod) ended() bool { return p.State == Succeeded || p.State == Failed }

// Exit codes with a meaning of their own. 137 and 143 are SIGKILL and SIGTERM; 247 is DLRover's for a killed process
// that wanted too much memory; 201, 202 and 14 are what its node checks exit with.
const (
	ExitKilled      = 137
	ExitTerminated  = 143
	exitOutOfMemory = 247
)

var hardwareExits = map[int32]bool{201: true, 202: true, 14: true}

// Classify says which budget the end of a pod costs, and why it ended. The pod is not live and has not succeeded.
func Classify(pod *Pod) (Class, string) {
	end := pod.End
	switch {
	case pod.Unfit != "":
		return Hardware, "the job's master: " + pod.Unfit
	case end.Disruption != "":
		return Disruption, end.Disruption
	case pod.Node == NodeGone && !end.Exited:
		return Disruption, "its node is no more"
	case pod.Node == NodeNotReady && pod.Leaving && !end.Exited:
		return Disruption, "its node is not ready"
	case pod.Notice != "" && !end.Exited:
		return Disruption, pod.Notice
	case pod.Leaving && !pod.Lingers:
		return Deleted, "deleted"
	case end.OutOfMemory || end.Exited && end.ExitCode == exitOutOfMemory:
		return OutOfMemory, "out of memory"
	case end.OverLimits:
		return Application, "evicted for more than its own limits allow"
	case !end.Exited:
		return Killed, "failed, and nobody says why"
	case end.ExitCode == ExitKilled || end.ExitCode == ExitTerminated:
		return Killed, fmt.Sprintf("exit code %d, a signal that nobody explains", end.ExitCode)
	case hardwareExits[end.ExitCode]:
		return Hardware, fmt.Sprintf("exit code %d, which blames the node", end.ExitCode)
	}
	return Application, fmt.Sprintf("exit code %d", end.ExitCode)
}
