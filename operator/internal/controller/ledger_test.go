package controller

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"phalanx/operator/api/v1alpha1"
)

var start = time.Unix(1000, 0)

func podOf(uid types.UID) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID = uid
	return pod
}

func TestNothingIsSureBeforeTheServerIsAsked(t *testing.T) {
	ledger := newLedger()
	if _, sure := ledger.unseen("job", start); sure {
		t.Error("a new process is sure")
	}
	ledger.settle("job", []*corev1.Pod{podOf("a")}, start)
	ahead, sure := ledger.unseen("job", start)
	if !sure || ahead.created["a"] == nil {
		t.Errorf("got %v, %v", ahead, sure)
	}
	ledger.doubt("job")
	if _, sure := ledger.unseen("job", start); sure {
		t.Error("sure in doubt")
	}
}

func TestWhatTheCacheShowsIsDropped(t *testing.T) {
	ledger := newLedger()
	ledger.settle("job", nil, start)
	ledger.created("job", podOf("a"), start)
	ledger.deleted("job", "b", start)
	ledger.saw("job", podOf("a"), false)
	ledger.saw("job", podOf("b"), false) // as it was before its deletion
	ahead, _ := ledger.unseen("job", start)
	if len(ahead.created) != 0 || !ahead.deleted["b"] {
		t.Errorf("got %v", ahead)
	}
	ledger.saw("job", podOf("b"), true)
	if ahead, _ = ledger.unseen("job", start); len(ahead.deleted) != 0 {
		t.Errorf("got %v", ahead)
	}
}

func TestAStatusThatTheCacheDoesNotShowYet(t *testing.T) {
	jobAt := func(version string, generation int64, phase string) *v1alpha1.ElasticJob {
		job := &v1alpha1.ElasticJob{}
		job.UID, job.ResourceVersion, job.Generation, job.Status.Phase = "job", version, generation, phase
		return job
	}
	cases := map[string]struct {
		cached    *v1alpha1.ElasticJob
		fresh     bool
		wantPhase string
	}{
		"the cache is behind":                   {jobAt("99", 1, "Pending"), true, "Running"},
		"the cache has it":                      {jobAt("100", 1, "Running"), true, "Running"},
		"the cache is ahead":                    {jobAt("101", 2, "Failed"), true, "Failed"},
		"the cache is behind the spec, as well": {jobAt("98", 0, "Pending"), false, "Pending"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ledger := newLedger()
			ledger.wrote(jobAt("100", 1, "Running"), start)
			fresh, err := ledger.freshen(tc.cached)
			if fresh != tc.fresh || err != nil || tc.cached.Status.Phase != tc.wantPhase {
				t.Errorf("fresh %v, %v, phase %s", fresh, err, tc.cached.Status.Phase)
			}
		})
	}
}

func TestAJobOfTheSameNameBeginsAnew(t *testing.T) {
	ledger, name := newLedger(), types.NamespacedName{Name: "job"}
	ledger.open(name, "old")
	ledger.settle("old", nil, start)
	ledger.open(name, "new")
	ledger.settle("new", nil, start)
	if _, kept := ledger.jobs["old"]; kept || len(ledger.jobs) != 1 {
		t.Errorf("kept: %v", ledger.jobs)
	}
	ledger.close(name)
	if len(ledger.jobs)+len(ledger.named) != 0 {
		t.Errorf("kept: %v", ledger.jobs)
	}
}

// A pod may come and go between two looks of the cache.
func TestAGhostIsAskedFor(t *testing.T) {
	ledger := newLedger()
	ledger.settle("job", nil, start)
	ledger.created("job", podOf("a"), start)
	ahead, sure := ledger.unseen("job", start.Add(unseenFor))
	if !sure || !ahead.expires.Equal(start.Add(unseenFor)) {
		t.Errorf("got %v, %v", ahead, sure)
	}
	if _, sure := ledger.unseen("job", start.Add(unseenFor+1)); sure {
		t.Error("a pod that the cache has not shown for long is believed in")
	}
}

func TestSlowStart(t *testing.T) {
	var calls atomic.Int32
	done, err := slowStart(t.Context(), 1, 500, func(context.Context, int) error { calls.Add(1); return nil })
	if done != 500 || calls.Load() != 500 || err != nil {
		t.Errorf("done %d, called %d times, %v", done, calls.Load(), err)
	}
}

func TestSlowStartAsksFewTimesForWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		refused := errors.New("quota")
		done, err := slowStart(t.Context(), 1, 500, func(context.Context, int) error {
			calls.Add(1)
			time.Sleep(time.Second) // of the bubble: all that are to be under way are
			return refused
		})
		if done != 0 || calls.Load() != 1 || !errors.Is(err, refused) {
			t.Errorf("done %d, called %d times, %v", done, calls.Load(), err)
		}
	})
}

func TestSlowStartStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	_, err := slowStart(ctx, 1, 500, func(context.Context, int) error {
		if calls.Add(1) == 3 {
			cancel()
		}
		return nil
	})
	if calls.Load() > 3+maxInFlight || !errors.Is(err, context.Canceled) {
		t.Errorf("called %d times, %v", calls.Load(), err)
	}
}
