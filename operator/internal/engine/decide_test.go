package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// podOf is a running worker; changes make it something else.
func podOf(rank int32, changes ...func(*Pod)) Pod {
	pod := Pod{Role: "worker", ID: rank, Rank: rank, State: Running, Began: true, Ready: true}
	pod.Host = fmt.Sprintf("node-%d", rank)
	for _, change := range changes {
		change(&pod)
	}
	pod.Name = fmt.Sprintf("%s-%d", pod.Role, pod.ID)
	pod.UID = "uid-" + pod.Name
	return pod
}

func id(id int32) func(*Pod)          { return func(p *Pod) { p.ID = id } }
func before(counts Counts) func(*Pod) { return func(p *Pod) { p.Before = counts } }
func state(state State) func(*Pod)    { return func(p *Pod) { p.State, p.Ready = state, false } }
func leaving(p *Pod)                  { p.Leaving, p.Ready = true, false }
func onHost(host string) func(*Pod)   { return func(p *Pod) { p.Host = host } }
func master(p *Pod)                   { p.Role = "master" }
func disrupted(why string) func(*Pod) { return func(p *Pod) { p.End.Disruption = why } }
func outOfMemory(p *Pod)              { exited(137)(p); p.End.OutOfMemory = true }
func endedAt(at time.Time) func(*Pod) { return func(p *Pod) { p.End.At = at } }
func blockedSince(t time.Time) func(*Pod) {
	return func(p *Pod) { p.State, p.Ready, p.Blocked = Pending, false, Blocked{"ErrImagePull: no such image", t} }
}

func onNode(node Node) func(*Pod) { return func(p *Pod) { p.Node = node } }

func exited(code int32) func(*Pod) {
	return func(p *Pod) {
		p.State, p.Began, p.Ready = Failed, true, false
		p.End.Exited, p.End.ExitCode, p.End.At = true, code, noon
	}
}

func countsOf(class Class, count int32) Counts {
	var counts Counts
	counts[class] = count
	return counts
}

// started is the memory of a job whose pods were made and have lost nothing.
func started(workers int32) Memory {
	return Memory{Roles: map[string]RoleMemory{
		"worker": {NextID: workers, Started: workers}, "master": {NextID: 1, Started: 1},
	}}
}

func wanted(workers int32) Desired {
	policy := DefaultPolicy()
	return Desired{Roles: []Role{
		{Name: "master", Replicas: 1, Decides: true, Limits: policy.Limits(0)},
		{Name: "worker", Replicas: workers, Limits: policy.Limits(3)},
	}}
}

// lines are actions, one a line, in a form that a person reads in a table.
func lines(actions []Action) []string {
	var lines []string
	for _, action := range actions {
		switch a := action.(type) {
		case Create:
			line := fmt.Sprintf("create %s-%d rank %d", a.Role, a.ID, a.Rank)
			if counts := a.Before.String(); counts != "" {
				line += " " + counts
			}
			if a.Unbegun > 0 {
				line += fmt.Sprintf(" unbegun %d", a.Unbegun)
			}
			if len(a.Avoid) > 0 {
				line += " avoid " + strings.Join(a.Avoid, ",")
			}
			lines = append(lines, line)
		case Drain:
			lines = append(lines, fmt.Sprintf("drain %s until %v: %s", a.Pod.Name, a.Until.Sub(noon), a.Reason))
		case Delete:
			verb := "delete "
			if a.Force {
				verb = "force "
			}
			lines = append(lines, verb+a.Pod.Name+": "+a.Reason)
		case Finish:
			lines = append(lines, fmt.Sprintf("finish %v %s", a.Outcome.Success, a.Outcome.Reason))
		case Wake:
			lines = append(lines, "wake in "+a.At.Sub(noon).String())
		}
	}
	return lines
}

func TestDecide(t *testing.T) {
	masterPod := podOf(0, master)
	cases := map[string]struct {
		pods    []Pod
		memory  Memory
		desired Desired
		want    []string
	}{
		"a new job gets its master and all workers at once": {
			desired: wanted(2),
			want:    []string{"create master-0 rank 0", "create worker-0 rank 0", "create worker-1 rank 1"},
		},
		"nothing is done for a job that runs": {
			pods: []Pod{masterPod, podOf(0), podOf(1)}, memory: started(2), desired: wanted(2),
		},
		"a pod that an exit code has ended costs its rank a restart": {
			pods: []Pod{masterPod, podOf(0), podOf(1, exited(1))}, memory: started(2), desired: wanted(2),
			want: []string{"create worker-2 rank 1 Application=1"},
		},
		"the fourth failure of a rank ends the job": {
			pods:   []Pod{masterPod, podOf(0), podOf(1, id(7), exited(1), before(countsOf(Application, 3)))},
			memory: started(2), desired: wanted(2),
			want: []string{"finish false RestartsExhausted", "delete master-0: the job has ended",
				"delete worker-0: the job has ended"},
		},
		"preemption costs nothing, however often": {
			pods: []Pod{masterPod, podOf(0), podOf(1, leaving, disrupted("PreemptionByScheduler"),
				before(countsOf(Disruption, 99)))},
			memory: started(2), desired: wanted(2),
			want: []string{"create worker-2 rank 1 Disruption=100"},
		},
		"an eviction before the container has a status costs nothing": {
			pods: []Pod{podOf(0, master, state(Failed), disrupted("Evicted")), podOf(0)}, memory: started(1), desired: wanted(1),
			want: []string{"create master-1 rank 0 Disruption=1"},
		},
		"a node that is no more takes its pods along, and that costs nothing": {
			pods: []Pod{masterPod, podOf(0), podOf(1, onNode(NodeGone))}, memory: started(2), desired: wanted(2),
			want: []string{"force worker-1: its node is no more", "create worker-2 rank 1 Disruption=1"},
		},
		"a master goes with its node, too": {
			pods: []Pod{podOf(0, master, onNode(NodeGone)), podOf(0)}, memory: started(1), desired: wanted(1),
			want: []string{"force master-0: its node is no more", "create master-1 rank 0 Disruption=1"},
		},
		"what a pod has done before its node went counts": {
			pods: []Pod{masterPod, podOf(0, exited(1), onNode(NodeGone))}, memory: started(1), desired: wanted(1),
			want: []string{"create worker-1 rank 0 Application=1"},
		},
		"a node that is not ready may come back": {
			pods: []Pod{masterPod, podOf(0, onNode(NodeNotReady))}, memory: started(1), desired: wanted(1),
		},
		"a pod that is to leave such a node is replaced at once, and stays": {
			pods: []Pod{masterPod, podOf(0, onNode(NodeNotReady), leaving)}, memory: started(1), desired: wanted(1),
			want: []string{"create worker-1 rank 0 Disruption=1"},
		},
		"pods of nodes that are no more leave a suspended job, too": {
			pods: []Pod{podOf(0, onNode(NodeGone), leaving)}, memory: started(1), desired: Desired{Suspended: true},
			want: []string{"force worker-0: its node is no more"},
		},
		"who is deleted by hand is replaced while it is still leaving": {
			pods: []Pod{masterPod, podOf(0, leaving)}, memory: started(1), desired: wanted(1),
			want: []string{"create worker-1 rank 0 Deleted=1"},
		},
		"a pod that is gone without a trace is replaced": {
			pods: []Pod{masterPod, podOf(1)}, memory: started(2), desired: wanted(2),
			want: []string{"create worker-2 rank 0 Deleted=1"},
		},
		"an end that was booked is not booked again when the pod behind it is gone": {
			pods: []Pod{masterPod, podOf(0, exited(1))},
			memory: Memory{Roles: started(1).Roles, Ranks: map[RankKey]RankMemory{
				{"worker", 0}: {Ends: countsOf(Application, 1), LastID: 5}}},
			desired: wanted(1),
			want:    []string{"create worker-1 rank 0 Application=1,Deleted=1"},
		},
		"a container without memory has a budget of its own": {
			pods:   []Pod{masterPod, podOf(0, outOfMemory, before(countsOf(Application, 3)))},
			memory: started(1), desired: wanted(1),
			want: []string{"create worker-1 rank 0 Application=3,OutOfMemory=1"},
		},
		"three unexplained signals are free": {
			pods: []Pod{masterPod, podOf(0, exited(137), before(countsOf(Killed, 2)))}, memory: started(1), desired: wanted(1),
			want: []string{"create worker-1 rank 0 Killed=3"},
		},
		"the fourth unexplained signal counts as a failure": {
			pods: []Pod{masterPod, podOf(0, exited(143), before(countsOf(Killed, 3)))}, memory: started(1), desired: wanted(1),
			want: []string{"create worker-1 rank 0 Application=1,Killed=3"},
		},
		"an exit code that blames the node keeps new pods off it": {
			pods: []Pod{masterPod, podOf(0), podOf(1, exited(201), onHost("bad"))}, memory: started(2), desired: wanted(2),
			want: []string{"create worker-2 rank 1 Hardware=1 avoid bad", "wake in 24h0m0s"},
		},
		"a larger size adds ranks": {
			pods: []Pod{masterPod, podOf(0)}, memory: started(1), desired: wanted(3),
			want: []string{"create worker-1 rank 1", "create worker-2 rank 2"},
		},
		"a smaller size ends the highest ranks": {
			pods: []Pod{masterPod, podOf(0), podOf(1), podOf(2)}, memory: started(3), desired: wanted(1),
			want: []string{"delete worker-2: worker has 1 replicas now", "delete worker-1: worker has 1 replicas now"},
		},
		"a size given back begins anew, and costs nothing": {
			pods: []Pod{masterPod, podOf(0), podOf(1, leaving)}, memory: started(1), desired: wanted(2),
			want: []string{"create worker-2 rank 1"},
		},
		"of two pods of a rank the one that works stays": {
			pods: []Pod{masterPod, podOf(0), podOf(0, id(4), state(Pending))}, memory: started(1), desired: wanted(1),
			want: []string{"delete worker-4: worker-0 holds rank 0 as well"},
		},
		"a suspended job has no pods": {
			pods: []Pod{masterPod, podOf(0)}, memory: started(1),
			desired: Desired{Suspended: true, Roles: wanted(1).Roles},
			want:    []string{"delete master-0: the job is suspended", "delete worker-0: the job is suspended"},
		},
		"a job that goes on gets new ids, and its ranks have lost nothing": {
			pods:    []Pod{podOf(0, leaving)},
			memory:  Memory{Roles: map[string]RoleMemory{"worker": {NextID: 2}, "master": {NextID: 1}}},
			desired: wanted(2),
			want:    []string{"create master-1 rank 0", "create worker-2 rank 0", "create worker-3 rank 1"},
		},
		"the master's success is the job's": {
			pods: []Pod{podOf(0, master, state(Succeeded)), podOf(0)}, memory: started(1), desired: wanted(1),
			want: []string{"finish true MasterSucceeded", "delete worker-0: the job has ended"},
		},
		"the master's exit code 1 is the job's": {
			pods: []Pod{podOf(0, master, exited(1)), podOf(0)}, memory: started(1), desired: wanted(1),
			want: []string{"finish false MasterFailed", "delete worker-0: the job has ended"},
		},
		"a master that was killed is replaced, and nobody else": {
			pods: []Pod{podOf(0, master, exited(137)), podOf(0)}, memory: started(1), desired: wanted(1),
			want: []string{"create master-1 rank 0 Killed=1"},
		},
		"workers that have all succeeded end the job": {
			pods:   []Pod{masterPod, podOf(0, state(Succeeded)), podOf(1, state(Succeeded))},
			memory: started(2), desired: wanted(2),
			want: []string{"finish true WorkersSucceeded", "delete master-0: the job has ended"},
		},
		"a worker that has succeeded is done": {
			pods: []Pod{masterPod, podOf(0, state(Succeeded)), podOf(1)}, memory: started(2), desired: wanted(2),
		},
		"a job that has ended only loses pods": {
			pods:   []Pod{podOf(0, exited(1)), podOf(1)},
			memory: Memory{Roles: started(2).Roles, Outcome: &Outcome{Success: false}}, desired: wanted(2),
			want: []string{"delete worker-1: the job has ended"},
		},
		"a job whose pods cannot start is looked at again": {
			pods: []Pod{masterPod, podOf(0, blockedSince(noon.Add(-9*time.Minute)))}, memory: started(1), desired: wanted(1),
			want: []string{"wake in 1m0s"},
		},
		"a job whose pods cannot start ends": {
			pods: []Pod{masterPod, podOf(0, blockedSince(noon.Add(-10*time.Minute)))}, memory: started(1), desired: wanted(1),
			want: []string{"finish false StartBlocked", "delete master-0: the job has ended",
				"delete worker-0: the job has ended"},
		},
		"one pod that cannot start ends no job that runs": {
			pods:   []Pod{masterPod, podOf(0), podOf(1, blockedSince(noon.Add(-time.Hour)))},
			memory: started(2), desired: wanted(2),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := lines(Decide(Observed{Pods: tc.pods, Memory: tc.memory}, tc.desired, DefaultPolicy(), noon))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

func answered(p *Pod) { p.Answered, p.Address = true, "10.0.0.1" }
func released(p *Pod) { p.Answered, p.Released = true, true }
func drainingFor(d time.Duration) func(*Pod) {
	return func(p *Pod) { p.Answered, p.DrainSince = true, noon.Add(-d) }
}
func unfit(p *Pod)   { p.Answered, p.Unfit = true, "sector 7 is gone" }
func noticed(p *Pod) { p.Answered, p.Notice = true, "its node is about to go: taint spot" }

func TestWhatTheMasterSays(t *testing.T) {
	const smaller = ": worker has 1 replicas now"
	cases := map[string]struct {
		pod     Pod
		workers int32
		want    []string
	}{
		"a pod that is too many trains until the master does without it": {
			podOf(1, answered), 1, []string{"drain worker-1 until 1m0s" + smaller, "wake in 1m0s"},
		},
		"the time it has for that is counted from the first time": {
			podOf(1, drainingFor(40*time.Second)), 1, []string{"drain worker-1 until 20s" + smaller, "wake in 20s"},
		},
		"then it goes": {podOf(1, released), 1, []string{"delete worker-1" + smaller}},
		"a master that does not answer is not waited for for ever": {
			podOf(1, drainingFor(time.Minute)), 1, []string{"delete worker-1" + smaller},
		},
		"nor is a pod that does not run": {
			podOf(1, answered, state(Pending)), 1, []string{"delete worker-1" + smaller},
		},
		"nor is a master that never answers": {podOf(1), 1, []string{"delete worker-1" + smaller}},
		"a pod on a bad node is replaced elsewhere": {podOf(1, unfit), 2, []string{
			"delete worker-1: its node is unfit: sector 7 is gone", "create worker-2 rank 1 Hardware=1 avoid node-1",
			"wake in 24h0m0s",
		}},
		"a pod whose node is about to go trains until the master does without it": {podOf(1, noticed), 2, []string{
			"drain worker-1 until 1m0s: its node is about to go: taint spot", "wake in 1m0s",
		}},
		"then it goes first, and its successor elsewhere": {podOf(1, noticed, released), 2, []string{
			"delete worker-1: its node is about to go: taint spot",
		}},
		"it is no failure": {podOf(1, noticed, leaving), 2, []string{"create worker-2 rank 1 Disruption=1 avoid node-7"}},
		"what its program does meanwhile counts": {podOf(1, noticed, exited(1)), 2, []string{
			"create worker-2 rank 1 Application=1 avoid node-7",
		}},
		"nobody is asked about a pod that has not begun": {podOf(1, noticed, state(Pending)), 2, []string{
			"delete worker-1: its node is about to go: taint spot",
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pods := []Pod{podOf(0, master), podOf(0), tc.pod}
			observed := Observed{Pods: pods, Memory: started(2)}
			if tc.pod.Notice != "" {
				observed.Going = []string{"node-7"}
			}
			got := lines(Decide(observed, wanted(tc.workers), DefaultPolicy(), noon))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

// What a pod requires of its host cannot be changed: one that finds no place is made anew when a host is free again.
func TestAPodIsKeptOffAHostForAsLongAsItIsAvoided(t *testing.T) {
	unplaced := func(avoids ...string) func(*Pod) {
		return func(p *Pod) { p.State, p.Ready, p.Host, p.NoPlace, p.Avoids = Pending, false, "", true, avoids }
	}
	placed := func(p *Pod) { unplaced("bad")(p); p.NoPlace = false }
	const anew = "delete worker-1: there is no place for it, and it is kept off bad, which is avoided no more"
	for name, tc := range map[string]struct {
		pod   Pod
		until time.Time // of the exclusion of "bad"; zero: there is none
		going []string
		want  []string
	}{
		"it is still avoided":          {podOf(1, unplaced("bad")), noon.Add(time.Hour), nil, []string{"wake in 1h0m0s"}},
		"no more":                      {podOf(1, unplaced("bad")), noon, nil, []string{anew}},
		"one of two":                   {podOf(1, unplaced("spot", "bad")), time.Time{}, []string{"spot"}, []string{anew}},
		"it is about to go":            {podOf(1, unplaced("bad")), time.Time{}, []string{"bad"}, nil},
		"it was kept off none":         {podOf(1, unplaced()), time.Time{}, nil, nil},
		"the scheduler has not looked": {podOf(1, placed), time.Time{}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			memory := started(2)
			if !tc.until.IsZero() {
				memory.Excluded = []Exclusion{{Host: "bad", Until: tc.until}}
			}
			observed := Observed{Pods: []Pod{podOf(0, master), podOf(0), tc.pod}, Memory: memory, Going: tc.going}
			if diff := cmp.Diff(tc.want, lines(Decide(observed, wanted(2), DefaultPolicy(), noon))); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

// A job has one master, which goes when its node does.
func TestANoticeMovesNoMaster(t *testing.T) {
	pods := []Pod{podOf(0, master, noticed), podOf(0)}
	if got := lines(Decide(Observed{Pods: pods, Memory: started(1)}, wanted(1), DefaultPolicy(), noon)); got != nil {
		t.Errorf("actions %q", got)
	}
}

// However often it is looked at, a node is left out for as long as it was when the master first said so.
func TestAnUnfitNodeIsLeftOutOnce(t *testing.T) {
	pods := []Pod{podOf(0, master), podOf(0, unfit)}
	first := Fold(started(1), pods, wanted(1), DefaultPolicy(), noon)
	again := Fold(first, pods, wanted(1), DefaultPolicy(), noon.Add(time.Hour))
	if len(first.Excluded) != 1 || !slices.Equal(first.Excluded, again.Excluded) {
		t.Errorf("%v, and then %v", first.Excluded, again.Excluded)
	}
}

// Where the operator may, a pod that leaves a silent node is removed some time past its grace, and not before.
func TestASilentNodesPodIsRemovedInTime(t *testing.T) {
	policy := DefaultPolicy()
	policy.ForceDeleteAfter = time.Minute
	old := podOf(0, leaving, onNode(NodeNotReady))
	old.GoesAt = noon.Add(-30 * time.Second)
	pods := []Pod{podOf(0, master), old, podOf(0, id(1))}
	want := map[time.Duration][]string{
		0:                {"wake in 30s"},
		30 * time.Second: {"force worker-0: it has been leaving a node that is not ready since 2026-11-27T11:59:30Z"},
	}
	for later, want := range want {
		got := lines(Decide(Observed{Pods: pods, Memory: started(1)}, wanted(1), policy, noon.Add(later)))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v later (-want +got):\n%s", later, diff)
		}
	}
}

// refusedAt is a pod that the kubelet has refused.
func refusedAt(at time.Time, unbegun int32) func(*Pod) {
	return func(p *Pod) {
		p.State, p.Began, p.Ready, p.Unbegun = Failed, false, false, unbegun
		p.End.Disruption, p.End.At = "UnexpectedAdmissionError", at
	}
}

// A node that refuses pods gets them ever more slowly. A rank whose pod had begun waits for nothing.
func TestAPodThatHadNotBegunIsReplacedLater(t *testing.T) {
	cases := map[string]struct {
		pod  Pod
		want []string
	}{
		"the first": {podOf(0, refusedAt(noon, 0)), []string{"wake in 1s"}},
		"then it comes": {
			podOf(0, refusedAt(noon.Add(-time.Second), 0)), []string{"create worker-1 rank 0 Disruption=1 unbegun 1"},
		},
		"the fourth":                     {podOf(0, refusedAt(noon, 3)), []string{"wake in 8s"}},
		"never longer than five minutes": {podOf(0, refusedAt(noon, 2_000_000_000)), []string{"wake in 5m0s"}},
		"one that had begun": {podOf(0, refusedAt(noon, 3), func(p *Pod) { p.Began = true }), []string{
			"create worker-1 rank 0 Disruption=1",
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			observed := Observed{Pods: []Pod{podOf(0, master), tc.pod}, Memory: started(1)}
			if diff := cmp.Diff(tc.want, lines(Decide(observed, wanted(1), DefaultPolicy(), noon))); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
		})
	}
}

// That a node refuses pods hides nothing of what a check says of it.
func TestAVerdictCountsMoreThanRefusals(t *testing.T) {
	refusals := Memory{Roles: started(1).Roles, Excluded: []Exclusion{
		{Host: "node-0", Until: noon.Add(30 * time.Minute), Reason: "full", Refused: true},
	}}
	pods := []Pod{podOf(0, master), podOf(0, unfit)}
	folded := Fold(refusals, pods, wanted(1), DefaultPolicy(), noon)
	if len(folded.Excluded) != 1 || folded.Excluded[0].Refused || folded.Excluded[0].Until != noon.Add(24*time.Hour) {
		t.Errorf("avoided: %v", folded.Excluded)
	}
}

// A kubelet that refuses one pod after the other is left alone for a while.
func TestANodeThatRefusesPodsIsAvoided(t *testing.T) {
	refused := func(number int32, host string) Pod {
		return podOf(0, id(number), refusedAt(noon.Add(time.Duration(number)*20*time.Second), number), onHost(host),
			func(p *Pod) { p.End.Refused = true })
	}
	preempted := podOf(0, id(2), refusedAt(noon, 2), onHost("full"))
	quick, later := refused(2, "full"), refused(2, "full")
	quick.End.At = noon.Add(21 * time.Second)
	later.Unbegun = 0
	cases := map[string]struct {
		pods []Pod
		want []string
	}{
		"three in a row":     {[]Pod{refused(0, "full"), refused(1, "full"), refused(2, "full")}, []string{"full"}},
		"within seconds":     {[]Pod{refused(0, "full"), refused(1, "full"), quick}, nil},
		"one began between":  {[]Pod{refused(0, "full"), refused(1, "full"), later}, nil},
		"one runs since":     {[]Pod{refused(0, "full"), refused(1, "full"), refused(2, "full"), podOf(0, id(3))}, nil},
		"two":                {[]Pod{refused(0, "full"), refused(1, "full")}, nil},
		"one of another":     {[]Pod{refused(0, "full"), refused(1, "other"), refused(2, "full")}, nil},
		"the last preempted": {[]Pod{refused(0, "full"), refused(1, "full"), preempted}, nil},
		"of several ranks": {[]Pod{
			refused(0, "full"), refused(1, "full"), podOf(1, id(5), refusedAt(noon, 0), onHost("full")),
		}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			policy := DefaultPolicy()
			folded := Fold(started(1), append(tc.pods, podOf(0, master)), wanted(1), policy, noon.Add(time.Minute))
			var hosts []string
			for _, exclusion := range folded.Excluded {
				hosts = append(hosts, exclusion.Host)
			}
			if !slices.Equal(hosts, tc.want) {
				t.Errorf("avoided: %v", folded.Excluded)
			}
			later := Fold(folded, tc.pods, wanted(1), policy, noon.Add(time.Minute+policy.RefusedFor))
			if len(later.Excluded) != 0 {
				t.Errorf("still avoided: %v", later.Excluded)
			}
		})
	}
}

// Of the pods that have failed some stay, for their logs, and not all for ever.
func TestOldFailedPodsGo(t *testing.T) {
	pods := []Pod{podOf(0, master), podOf(0, id(9))}
	for number := range int32(5) {
		pods = append(pods, podOf(0, id(number), exited(1)), podOf(1, id(20+number), exited(1)))
	}
	got := lines(Decide(Observed{Pods: pods, Memory: started(2)}, wanted(1), DefaultPolicy(), noon))
	want := []string{
		"delete worker-1: 3 newer pods of rank 0 have failed", "delete worker-0: 3 newer pods of rank 0 have failed",
		"delete worker-21: 3 newer pods of rank 1 have failed", "delete worker-20: 3 newer pods of rank 1 have failed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

// Whose program has ended, and whose other containers hold the node's devices on: its rank is vacant, and it goes when
// its end is written on the next one.
func TestAPodThatLingers(t *testing.T) {
	lingers := func(p *Pod) { p.Lingers = true }
	failed, goes := podOf(0, exited(1), lingers), podOf(0, exited(1), lingers, leaving)
	next := podOf(0, id(1), before(countsOf(Application, 1)))
	of := func(master Pod, pods ...Pod) []string {
		observed := Observed{Pods: append(pods, master), Memory: started(1)}
		return lines(Decide(observed, wanted(1), DefaultPolicy(), noon))
	}
	runs, done := podOf(0, master), podOf(0, master, state(Succeeded), lingers)
	over := []string{"delete worker-0: the job has ended", "delete master-0: the job has ended"}
	made := []string{"create worker-1 rank 0 Application=1"}
	ended, another := podOf(0, state(Succeeded), lingers), podOf(0, id(1), exited(1))
	const gone = ": its program has ended, and others of its containers run on"
	for name, tc := range map[string]struct{ got, want []string }{
		"its rank is vacant":       {of(runs, failed), made},
		"the next one is there":    {of(runs, failed, next), []string{"delete worker-0" + gone}},
		"it leaves":                {of(runs, goes, next), nil},
		"deleted before there is":  {of(runs, goes), made},
		"its rank is not wanted":   {of(runs, podOf(0), podOf(1, exited(1), lingers)), []string{"delete worker-1" + gone}},
		"it has succeeded":         {of(runs, ended), append([]string{"finish true WorkersSucceeded"}, over...)},
		"the master has succeeded": {of(done, failed), append([]string{"finish true MasterSucceeded"}, over...)},
		"another one has failed":   {of(runs, failed, another, podOf(0, id(2))), []string{"delete worker-0" + gone}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A pod whose deletion was asked for a moment ago has all its grace still before it.
func TestAPodThatHasJustBeenDeletedIsNotForced(t *testing.T) {
	policy := DefaultPolicy()
	policy.ForceDeleteAfter = time.Minute
	pods := []Pod{podOf(0, master, leaving, onNode(NodeNotReady))}
	desired := Desired{Suspended: true, Roles: wanted(1).Roles}
	if got := lines(Decide(Observed{Pods: pods, Memory: started(1)}, desired, policy, noon)); got != nil {
		t.Errorf("actions %q", got)
	}
}

func TestTheFirstCauseIsBlamed(t *testing.T) {
	spent := before(countsOf(Application, 3))
	pods := []Pod{
		podOf(0, master), podOf(0, exited(1), spent, endedAt(noon)),
		podOf(1, exited(5), spent, endedAt(noon.Add(-time.Second))),
	}
	actions := Decide(Observed{Pods: pods, Memory: started(2)}, wanted(2), DefaultPolicy(), noon)
	finish, ok := actions[0].(Finish)
	if !ok || !strings.HasPrefix(finish.Outcome.Message, "worker-1 (rank 1): exit code 5;") {
		t.Errorf("got %v", actions)
	}
}

func TestEveryReplacementSaysWhy(t *testing.T) {
	pods := []Pod{podOf(0, master), podOf(0, leaving, disrupted("PreemptionByScheduler")), podOf(2)}
	for _, action := range Decide(Observed{Pods: pods, Memory: started(3)}, wanted(3), DefaultPolicy(), noon) {
		if create, ok := action.(Create); ok && create.Reason == "" {
			t.Errorf("no reason: %v", create)
		}
	}
}

// Ranks that a smaller size has ended are new ones when the size comes back: nobody has lost them.
func TestASmallerSizeEndsRanksForGood(t *testing.T) {
	pods := []Pod{podOf(0, master), podOf(0)}
	smaller := Fold(started(3), pods, wanted(1), DefaultPolicy(), noon)
	got := lines(Decide(Observed{Pods: pods, Memory: smaller}, wanted(2), DefaultPolicy(), noon))
	if diff := cmp.Diff([]string{"create worker-3 rank 1"}, got); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

func TestExclusions(t *testing.T) {
	policy := DefaultPolicy()
	var pods []Pod
	for host := range int32(100) {
		ended := noon.Add(-time.Duration(host) * time.Minute)
		pods = append(pods, podOf(0, id(host), exited(201), onHost(fmt.Sprintf("bad-%02d", host)), endedAt(ended)))
	}
	folded := Fold(Memory{}, pods, wanted(1), policy, noon)
	if len(folded.Excluded) != policy.ExcludedMax {
		t.Fatalf("%d hosts are excluded, want %d", len(folded.Excluded), policy.ExcludedMax)
	}
	if first, last := folded.Excluded[0].Host, folded.Excluded[63].Host; first != "bad-00" || last != "bad-63" {
		t.Errorf("from %s to %s, want the newest: bad-00 to bad-63", first, last)
	}
	later := noon.Add(policy.ExcludedFor)
	if again := Fold(folded, nil, wanted(1), policy, later); len(again.Excluded) != 0 {
		t.Errorf("%d hosts are still excluded", len(again.Excluded))
	}
	if again := Fold(folded, pods, wanted(1), policy, noon); !slices.Equal(again.Excluded, folded.Excluded) {
		t.Errorf("folding twice gives another list")
	}
}

func TestCountsAsText(t *testing.T) {
	counts := Counts{Application: 2, Disruption: 7}
	if got := counts.String(); got != "Application=2,Disruption=7" {
		t.Errorf("got %q", got)
	}
	for text, want := range map[string]Counts{
		"Application=2,Disruption=7": counts,
		"":                           {},
		"Application=-2,Other=3,=,x": {},
		"Application=99999999999":    {},
	} {
		if got := ParseCounts(text); got != want {
			t.Errorf("ParseCounts(%q) = %v, want %v", text, got, want)
		}
	}
}
