//go:build apiserver

package apiserver

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

var figuresFile = flag.String("figures", "", "measure with thousands of pods, too, and write a line of JSON for each")

// figures are measured on this machine and printed. Nothing fails because one is high: bench/kubernetes.py keeps them.
type figures struct {
	t    *testing.T
	file *os.File // nil: none
}

func newFigures(t *testing.T) *figures {
	f := &figures{t: t}
	if *figuresFile == "" {
		return f
	}
	var err error
	if f.file, err = os.Create(*figuresFile); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.file.Close() })
	return f
}

func (f *figures) add(what, unit string, value float64) {
	f.t.Helper()
	f.t.Logf("figure: %s: %.3g %s", what, value, unit)
	if f.file == nil {
		return
	}
	line := map[string]any{"what": what, "unit": unit, "value": value}
	if err := json.NewEncoder(f.file).Encode(line); err != nil {
		f.t.Fatal(err)
	}
}

func TestFigures(t *testing.T) {
	f := newFigures(t)
	if f.file == nil {
		f.heardByMaster(20)
		f.oneJob(100, 10)
		return
	}
	f.heardByMaster(200)
	f.firstPod()
	f.oneJob(500, 30)
	f.oneJob(1000, 100)
	f.manyJobs(1000, 8)
}

const rounds = 3

// firstPod is the time from a job to its first worker.
func (f *figures) firstPod() {
	s := newStage(f.t)
	there := takeCensus(s)
	operator := warmOperator(s, there)
	defer operator.kill()
	for round := range rounds {
		began := time.Now()
		s.create(simpleJob(fmt.Sprintf("first-%d", round), 1))
		s.await(func() error {
			workers := there.workers(1, func(p corev1.Pod) bool { return of(fmt.Sprintf("first-%d", round), p) })
			if len(workers) == 0 {
				return errorf("no worker")
			}
			return nil
		})
		f.add("a job created, to its first worker pod", "s", time.Since(began).Seconds())
	}
}

// warmOperator is one that has its caches: they have shown it a job.
func warmOperator(s *stage, there *census) *operator {
	started := startOperator(s.t)
	s.create(simpleJob("warm", 1))
	s.await(func() error { return there.has("warm", 2) })
	return started
}

// oneJob makes a large job, and then loses some of its workers at a time.
func (f *figures) oneJob(workers, lost int) {
	s := newStage(f.t)
	there := takeCensus(s)
	operator := warmOperator(s, there)
	defer operator.kill()
	name := ""
	for round := range rounds {
		if name != "" {
			s.remove(name)
		}
		name = fmt.Sprintf("large-%d", round)
		began := time.Now()
		s.create(simpleJob(name, int32(workers)))
		s.await(func() error { return there.has(name, workers+1) })
		f.add(fmt.Sprintf("a job of %d workers created", workers), "pods/s",
			float64(workers+1)/time.Since(began).Seconds())
	}
	startKubelet(s)
	s.await(s.ready(name, int32(workers)))
	for range rounds {
		victims := there.workers(lost, func(p corev1.Pod) bool { return of(name, p) })
		began := time.Now()
		inParallel(victims, func(pod corev1.Pod) { s.forceDelete(pod) })
		deleted := time.Now()
		s.await(func() error { return there.has(name, workers+1, victims...) })
		what := fmt.Sprintf("%d of %d workers deleted, to %d new pods, from the", lost, workers, lost)
		f.add(what+" first deletion", "s", time.Since(began).Seconds())
		f.add(what+" last deletion", "s", time.Since(deleted).Seconds())
		s.await(s.ready(name, int32(workers)))
	}
}

// manyJobs makes many small jobs, and asks what they cost while nothing happens, and behind a restart.
func (f *figures) manyJobs(jobs, workers int) {
	s := newStage(f.t)
	there := takeCensus(s)
	operator := warmOperator(s, there)
	s.remove("warm")
	began := time.Now()
	names := make([]string, jobs)
	for i := range names {
		names[i] = fmt.Sprintf("job-%d", i)
	}
	inParallel(names, func(name string) { s.submit(simpleJob(name, int32(workers))) })
	s.awaitLong(func() error { return there.total(jobs * (workers + 1)) })
	f.add(fmt.Sprintf("%d jobs of %d workers, to all pods", jobs, workers), "s", time.Since(began).Seconds())
	s.submit(simpleJob("large", 1000))
	pods := jobs*(workers+1) + 1001
	s.awaitLong(func() error { return there.total(pods) })
	startKubelet(s)
	s.awaitLong(s.ready("large", 1000))
	s.awaitLong(func() error { return s.allReady(jobs*workers + 1000) })
	settle(f.t)
	before := writes(f.t)
	<-time.After(30 * time.Second)
	f.add(fmt.Sprintf("writes of %d idle jobs with %d pods", jobs+1, pods), "/min", float64(writes(f.t)-before)*2)
	f.memory(operator, fmt.Sprintf("with %d pods", pods))
	for range rounds {
		operator.kill()
		victims := there.workers(30, func(p corev1.Pod) bool { return !of("large", p) })
		s.forceDelete(victims...)
		began := time.Now()
		operator = startOperator(f.t)
		s.await(func() error { return there.total(pods, victims...) })
		f.add(fmt.Sprintf("restarted with %d pods of which 30 were lost meanwhile, to all", pods), "s",
			time.Since(began).Seconds())
		s.await(func() error { return s.allReady(jobs*workers + 1000) })
		settle(f.t)
		f.memory(operator, fmt.Sprintf("restarted with %d pods", pods))
	}
	operator.kill()
}

// memory is what is resident, now and at most.
func (f *figures) memory(operator *operator, when string) {
	f.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", operator.command.Process.Pid))
	if err != nil {
		f.t.Fatal(err)
	}
	for key, what := range map[string]string{"VmRSS": "resident memory", "VmHWM": "its peak"} {
		_, rest, found := strings.Cut(string(text), key+":")
		var kib float64
		if _, err := fmt.Sscan(rest, &kib); !found || err != nil {
			f.t.Fatalf("%s: %v", key, err)
		}
		f.add(what+", "+when, "MB", kib*1024/1e6)
	}
}

// settle waits until a second goes by without a write.
func settle(t *testing.T) {
	t.Helper()
	before := int64(-1)
	for now := writes(t); now != before; now = writes(t) {
		before = now
		<-time.After(time.Second)
	}
}

// inParallel calls do for all, some at a time.
func inParallel[T any](all []T, do func(T)) {
	next := make(chan T)
	var wait sync.WaitGroup
	for range min(len(all), 32) {
		wait.Go(func() {
			for one := range next {
				do(one)
			}
		})
	}
	for _, one := range all {
		next <- one
	}
	close(next)
	wait.Wait()
}

func of(job string, pod corev1.Pod) bool { return pod.Labels["elasticjob.dlrover/name"] == job }

// An idle job costs the API server no writes.
func TestIdleJobsWriteNothing(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	startKubelet(s)
	const jobs = 20
	for i := range jobs {
		s.create(simpleJob(fmt.Sprintf("job-%d", i), 2))
	}
	s.await(func() error { return s.allReady(jobs * 2) })
	// What a busy operator still has to write comes first.
	for end := time.Now().Add(patience); ; {
		before := writes(t)
		<-time.After(5 * time.Second)
		written := writes(t) - before
		if written == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d writes in 5 s", written)
		}
	}
}

// allReady says what is missing until the statuses of the jobs have so many ready workers together.
func (s *stage) allReady(want int) error {
	s.t.Helper()
	var jobs v1alpha1.ElasticJobList
	if err := s.cache.List(s.t.Context(), &jobs, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	ready := 0
	for i := range jobs.Items {
		ready += int(jobs.Items[i].Status.Ready)
	}
	if ready != want {
		return errorf("%d ready, want %d", ready, want)
	}
	return nil
}

// writes is how many requests have changed jobs, plans, pods, services and events since the API server began.
func writes(t *testing.T) int64 {
	t.Helper()
	clients, err := kubernetes.NewForConfig(cluster.admin)
	if err != nil {
		t.Fatal(err)
	}
	text, err := clients.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") || !changes(line) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		total += int64(value)
	}
	return total
}

func changes(line string) bool {
	has := func(label, value string) bool { return strings.Contains(line, label+`="`+value+`"`) }
	kind := slices.ContainsFunc([]string{"elasticjobs", "scaleplans", "pods", "services", "events"}, func(k string) bool {
		return has("resource", k)
	})
	return kind && slices.ContainsFunc([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, func(verb string) bool {
		return has("verb", verb)
	})
}
