//go:build apiserver

package apiserver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"phalanx/operator/api/v1alpha1"
)

// goings are the moments at which a watch has shown that a pod is deleted.
type goings struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

func watchGoings(s *stage) *goings {
	g := &goings{at: map[types.UID]time.Time{}}
	s.listen(&corev1.Pod{}, toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) { g.see(object, false) },
		DeleteFunc: func(object any) { g.see(object, true) },
	})
	return g
}

func (g *goings) see(object any, gone bool) {
	now := time.Now()
	pod, ok := object.(*corev1.Pod)
	if !ok || !gone && pod.DeletionTimestamp == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, seen := g.at[pod.UID]; !seen {
		g.at[pod.UID] = now
	}
}

func (g *goings) of(pod types.UID) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at[pod]
}

// heardByMaster deletes workers of a job one after the other, and asks the record of the job's real master when it
// heard of each. The record's clock is this machine's, in whole milliseconds. Workers sleep.
func (f *figures) heardByMaster(deletions int) {
	const name, workers = "told", 4
	build, err := filepath.Abs(cmp.Or(os.Getenv("PHALANX_BUILD"), "../../../build/release/bin"))
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(build, "phalanx-master")); err != nil {
		f.t.Fatalf("%v; ./run build makes it", err)
	}
	s := newStage(f.t)
	pods := startProcesses(s, build+":/usr/bin:/bin:/usr/sbin:/sbin")
	pods.serve("elasticjob-"+name+"-dlrover-master", 50001)
	operator := startOperator(f.t, seeing(pods.hosts))
	defer operator.kill()
	goings := watchGoings(s)
	job := simpleJob(name, workers)
	delete(job.Spec.ReplicaSpecs, v1alpha1.ReplicaTypeMaster) // Phalanx's
	job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker].Template.Spec.Containers[0].Command = []string{"sleep", "86400"}
	s.create(job)
	s.await(s.running(name, workers))
	s.await(func() error {
		if s.job(name).Status.World == nil {
			return errorf("the master was not heard")
		}
		return nil
	})
	asked := map[types.UID]time.Time{}
	victims := map[string]types.UID{} // by the pod that takes its rank up
	for i := range deletions {
		victim := holder(s, fmt.Sprint(i%workers))
		asked[victim.UID] = time.Now()
		if err := cluster.client.Delete(f.t.Context(), &victim); err != nil {
			f.t.Fatal(err)
		}
		s.await(func() error {
			for _, pod := range s.live(v1alpha1.ReplicaTypeWorker) {
				if rankOf(pod) == i%workers && pod.UID != victim.UID && pod.Status.Phase == corev1.PodRunning {
					victims[pod.Name] = victim.UID
					return nil
				}
			}
			return errorf("nobody has taken %s's rank up", victim.Name)
		})
	}
	heard := recordOf(s, pods, filepath.Join(build, "phalanx"), victims)
	var fromEvent, fromRequest []float64
	for pod, victim := range victims {
		at, told := heard[pod]
		if !told {
			f.t.Fatalf("the master's record has nothing of %s", pod)
		}
		fromEvent = append(fromEvent, max(0, at-unixMs(goings.of(victim))))
		fromRequest = append(fromRequest, at-unixMs(asked[victim]))
	}
	f.spread("a worker deleted, from a watch's event to its master's record", fromEvent)
	f.spread("a worker deleted, from the request to its master's record", fromRequest)
	s.remove(name)
}

func unixMs(at time.Time) float64 { return float64(at.UnixMicro()) / 1000 }

// spread adds the median of a figure, its 99th percentile and the worst.
func (f *figures) spread(what string, samples []float64) {
	f.t.Helper()
	slices.Sort(samples)
	at := func(share float64) float64 { return samples[int(math.Ceil(share*float64(len(samples))))-1] }
	f.add(what+", median", "ms", at(0.5))
	f.add(what+", p99", "ms", at(0.99))
	f.add(what+", worst", "ms", at(1))
}

// recordOf returns when the job's master has heard of each of these pods, by the time that its record has; and ends it.
func recordOf(s *stage, pods *processes, program string, of map[string]types.UID) map[string]float64 {
	s.t.Helper()
	heard := map[string]float64{}
	for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(time.Second) {
		readRecord(s, pods, program, heard)
		missing := maps.Clone(of)
		maps.DeleteFunc(missing, func(pod string, _ types.UID) bool { return heard[pod] != 0 })
		if len(missing) == 0 {
			break
		}
	}
	for _, master := range s.live(v1alpha1.ReplicaTypeMaster) {
		running := pods.of(master)
		running.signal(syscall.SIGTERM)
		<-running.ended
	}
	return heard
}

func readRecord(s *stage, pods *processes, program string, heard map[string]float64) {
	s.t.Helper()
	for name := range s.live(v1alpha1.ReplicaTypeMaster) {
		folder := filepath.Join(pods.folder, name, "volume-state", "job")
		text, err := exec.CommandContext(s.t.Context(), program, "events", "--json", "--state-dir="+folder).Output()
		if err != nil {
			s.t.Fatalf("%v: %s", err, text)
		}
		for line := range strings.Lines(string(text)) {
			var row struct {
				Kind, Node string
				UnixMs     float64 `json:"unix_ms"`
			}
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				s.t.Fatalf("%v: %s", err, line)
			}
			if row.Kind == "platform-fact" {
				heard[row.Node] = row.UnixMs
			}
		}
	}
}
