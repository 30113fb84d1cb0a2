package engine

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var seeds = flag.Int("seeds", 2000, "how many random jobs")

// world is a cluster in which everything goes wrong, and carries out what Decide says. A pod that is deleted leaves for
// a while, and then is gone.
type world struct {
	random  *rand.Rand
	pods    []Pod
	memory  Memory
	desired Desired
	now     time.Time
	story   []string
}

func (w *world) say(format string, args ...any) {
	w.story = append(w.story, fmt.Sprintf(format, args...))
}

func (w *world) fault() {
	if len(w.pods) == 0 {
		return
	}
	pod := &w.pods[w.random.IntN(len(w.pods))]
	switch w.random.IntN(9) {
	case 0:
		w.say("%s starts", pod.Name)
		if pod.State == Pending {
			pod.State, pod.Began, pod.Ready = Running, true, true
		}
	case 1:
		code := []int32{1, 2, 14, 137, 139, 143, 201, 247}[w.random.IntN(8)]
		w.say("%s exits with %d", pod.Name, code)
		if pod.Live() {
			exited(code)(pod)
			pod.End.At = w.now
		}
	case 2:
		w.say("%s is preempted", pod.Name)
		pod.End.Disruption, pod.Leaving, pod.Ready = "PreemptionByScheduler", true, false
	case 3:
		w.say("%s is evicted", pod.Name)
		if pod.Live() {
			pod.State, pod.Ready, pod.End.Disruption, pod.End.At = Failed, false, "Evicted", w.now
		}
	case 4:
		w.say("%s is gone", pod.Name)
		gone := pod.UID
		w.pods = slices.DeleteFunc(w.pods, func(p Pod) bool { return p.UID == gone })
	case 5:
		replicas := int32(w.random.IntN(6))
		w.say("%d workers are wanted", replicas)
		w.desired.Roles[1].Replicas = replicas
	case 6:
		w.desired.Suspended = !w.desired.Suspended
		w.say("suspended: %v", w.desired.Suspended)
	case 7:
		w.say("the node of %s is no more", pod.Name)
		pod.Node, pod.Ready = NodeGone, false
	case 8:
		w.say("the node of %s is not ready", pod.Name)
		if pod.Node == NodeReady {
			pod.Node, pod.Ready = NodeNotReady, false
		}
	}
}

// work carries out actions, of which some requests fail, and remembers as the adapter does.
func (w *world) work(actions []Action, mayFail bool) {
	for _, action := range actions {
		if mayFail && w.random.IntN(8) == 0 {
			w.say("a request fails")
			continue
		}
		switch a := action.(type) {
		case Create:
			pod := Pod{
				Name: fmt.Sprintf("%s-%d", a.Role, a.ID), UID: fmt.Sprintf("%s-%d", a.Role, a.ID), Role: a.Role, ID: a.ID,
				Rank: a.Rank, Before: a.Before, Unbegun: a.Unbegun, Host: fmt.Sprintf("node-%d", w.random.IntN(9)),
			}
			w.say("create %s rank %d %v: %s", pod.Name, pod.Rank, pod.Before, a.Reason)
			w.pods = append(w.pods, pod)
		case Delete:
			w.say("delete %s: %s", a.Pod.Name, a.Reason)
			if a.Force {
				w.pods = slices.DeleteFunc(w.pods, func(p Pod) bool { return p.UID == a.Pod.UID })
			}
			for i := range w.pods {
				if w.pods[i].UID == a.Pod.UID {
					w.pods[i].Leaving, w.pods[i].Ready = true, false
				}
			}
		case Finish:
			w.say("finish: %s", a.Outcome.Message)
			w.memory.Outcome = &a.Outcome
		}
	}
	if !mayFail || w.random.IntN(8) > 0 { // else the operator is killed before it writes the status
		w.memory = Fold(w.memory, w.pods, w.desired, DefaultPolicy(), w.now)
	}
}

func (w *world) check(t *testing.T, actions []Action) {
	t.Helper()
	ids := map[string]bool{}
	for i := range w.pods {
		ids[w.pods[i].Name] = true
	}
	held := map[RankKey]bool{}
	for i := range w.pods {
		if pod := &w.pods[i]; pod.Live() {
			held[RankKey{pod.Role, pod.Rank}] = true
		}
	}
	for _, action := range actions {
		switch a := action.(type) {
		case Create:
			key := RankKey{a.Role, a.Rank}
			if held[key] {
				t.Fatalf("%v gets a second pod", key)
			}
			held[key] = true
			if name := fmt.Sprintf("%s-%d", a.Role, a.ID); ids[name] {
				t.Fatalf("%s is there already", name)
			}
			if w.desired.Suspended || w.memory.Outcome != nil {
				t.Fatalf("%v: a job that is suspended or has ended gets a pod", a)
			}
		case Delete:
			w.checkDelete(t, a, actions)
		}
	}
}

// checkDelete: a pod that is needed is deleted where another holds its rank, and for no other reason.
func (w *world) checkDelete(t *testing.T, a Delete, actions []Action) {
	t.Helper()
	if a.Reason == "" {
		t.Fatalf("%s is deleted, and nobody says why", a.Pod.Name)
	}
	if a.Pod.State == Failed && !a.Force {
		if kept := w.failedBehind(a.Pod); kept < DefaultPolicy().KeptFailed {
			t.Fatalf("%s is deleted: only %d newer ones have failed", a.Pod.Name, kept)
		}
		return
	}
	if a.Force {
		if a.Pod.Live() {
			t.Fatalf("%s lives, and is removed by force", a.Pod.Name)
		}
		return
	}
	_, finishes := actions[0].(Finish)
	over := w.desired.Suspended || w.memory.Outcome != nil || finishes
	for _, role := range w.desired.Roles {
		if role.Name == a.Pod.Role && a.Pod.Rank < role.Replicas && !over && !w.another(a.Pod) {
			t.Fatalf("%s is deleted: %s", a.Pod.Name, a.Reason)
		}
	}
}

// failedBehind is how many newer pods of a rank have failed.
func (w *world) failedBehind(pod Pod) int {
	count := 0
	for _, p := range w.pods {
		if p.Role == pod.Role && p.Rank == pod.Rank && p.ID > pod.ID && p.State == Failed && !p.Leaving {
			count++
		}
	}
	return count
}

func (w *world) another(than Pod) bool {
	return slices.ContainsFunc(w.pods, func(p Pod) bool {
		return p.Live() && p.UID != than.UID && p.Role == than.Role && p.Rank == than.Rank
	})
}

// whole: each rank has one live pod or is done, and nobody else is there.
func (w *world) whole() error {
	live := map[RankKey]int{}
	for i := range w.pods {
		if pod := &w.pods[i]; pod.Live() {
			live[RankKey{pod.Role, pod.Rank}]++
		}
	}
	if w.desired.Suspended || w.memory.Outcome != nil {
		if len(live) > 0 {
			return fmt.Errorf("%v live on", live)
		}
		return nil
	}
	for _, role := range w.desired.Roles {
		for rank := range role.Replicas {
			if key := (RankKey{role.Name, rank}); live[key] != 1 {
				return fmt.Errorf("%v has %d pods", key, live[key])
			}
			delete(live, RankKey{role.Name, rank})
		}
	}
	if len(live) > 0 {
		return fmt.Errorf("%v are too many", live)
	}
	return nil
}

// Whatever happens: no rank gets a second pod, no id is given out twice, no pod that is needed is deleted, and when
// nothing happens any more two decisions lead to what is wanted and a third one has nothing to do.
func TestAnyHistory(t *testing.T) {
	for seed := range *seeds {
		w := &world{random: rand.New(rand.NewPCG(uint64(seed), 1)), desired: wanted(4), now: noon}
		decide := func(mayFail bool) []Action {
			w.now = w.now.Add(time.Minute)
			actions := Decide(Observed{Pods: w.pods, Memory: w.memory}, w.desired, DefaultPolicy(), w.now)
			w.check(t, actions)
			w.work(actions, mayFail)
			return actions
		}
		report := func() {
			if t.Failed() {
				t.Logf("seed %d:", seed)
				for _, line := range w.story {
					t.Log(line)
				}
			}
		}
		t.Cleanup(report)
		for range 40 {
			for range w.random.IntN(4) {
				w.fault()
			}
			decide(true)
		}
		w.now = w.now.Add(DefaultPolicy().RetryMax)
		decide(false)
		decide(false)
		if err := w.whole(); err != nil {
			t.Fatal(err)
		}
		waits := func(action Action) bool { _, wakes := action.(Wake); return wakes }
		if rest := slices.DeleteFunc(decide(false), waits); len(rest) > 0 {
			t.Fatalf("still to do: %v", rest)
		}
		w.story = nil
	}
}

// What a rank's ends cost does not depend on how often, and from how old a memory, it is booked.
func TestFoldingIsIdempotent(t *testing.T) {
	for seed := range *seeds {
		w := &world{random: rand.New(rand.NewPCG(uint64(seed), 2)), desired: wanted(4), now: noon}
		for range 20 {
			w.fault()
			w.work(Decide(Observed{Pods: w.pods, Memory: w.memory}, w.desired, DefaultPolicy(), w.now), true)
		}
		once := Fold(w.memory, w.pods, w.desired, DefaultPolicy(), w.now)
		twice := Fold(once, w.pods, w.desired, DefaultPolicy(), w.now)
		if fmt.Sprint(once) != fmt.Sprint(twice) {
			t.Fatalf("seed %d: %v is folded to %v", seed, once, twice)
		}
	}
}
