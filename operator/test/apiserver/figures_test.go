//go:build apiserver

package apiserver

import (
	"bufio"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"phalanx/operator/api/v1alpha1"
)

// The figures of a job of 500 workers on this machine: they are printed, and nothing fails because one is high.
func TestFigures(t *testing.T) {
	const workers, lost = 500, 30
	s := newStage(t)
	startOperator(t)
	s.create(simpleJob("warm", 1))
	s.await(func() error { return s.whole(1) })

	began := time.Now()
	s.create(simpleJob("large", workers))
	s.await(func() error { return named(s, "large", workers) })
	took := time.Since(began)
	t.Logf("figure: %d workers created in %.2f s, %.0f pods/s", workers, took.Seconds(), workers/took.Seconds())

	startKubelet(s)
	s.await(func() error {
		if ready := s.job("large").Status.Ready; ready != workers {
			return fmt.Errorf("%d ready", ready)
		}
		return nil
	})
	for round := range 3 {
		victims := slices.Collect(maps.Values(s.live(v1alpha1.ReplicaTypeWorker)))
		victims = slices.DeleteFunc(victims, func(p corev1.Pod) bool { return !of("large", p) })[:lost]
		began = time.Now()
		inParallel(victims, func(pod corev1.Pod) { s.forceDelete(pod) })
		deleted := time.Since(began)
		s.await(func() error { return replaced(s, victims, workers) })
		t.Logf("figure: round %d: %d of %d deleted in %.2f s, all replaced %.2f s after the first deletion", round,
			lost, workers, deleted.Seconds(), time.Since(began).Seconds())
	}
}

func inParallel(pods []corev1.Pod, do func(corev1.Pod)) {
	done := make(chan struct{})
	for _, pod := range pods {
		go func() { do(pod); done <- struct{}{} }()
	}
	for range pods {
		<-done
	}
}

func of(job string, pod corev1.Pod) bool { return pod.Labels["elasticjob.dlrover/name"] == job }

func named(s *stage, job string, want int) error {
	there := 0
	for _, pod := range s.live(v1alpha1.ReplicaTypeWorker) {
		if of(job, pod) {
			there++
		}
	}
	if there != want {
		return fmt.Errorf("%d pods", there)
	}
	return nil
}

func replaced(s *stage, victims []corev1.Pod, want int) error {
	live := s.live(v1alpha1.ReplicaTypeWorker)
	for _, victim := range victims {
		if live[victim.Name].UID == victim.UID && victim.UID != "" {
			return fmt.Errorf("%s is still there", victim.Name)
		}
	}
	return named(s, "large", want)
}

// An idle job costs the API server no writes.
func TestIdleJobsWriteNothing(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	startKubelet(s)
	const jobs = 20
	for i := range jobs {
		s.create(simpleJob(fmt.Sprintf("job-%d", i), 2))
	}
	s.await(func() error {
		for i := range jobs {
			if status := s.job(fmt.Sprintf("job-%d", i)).Status; status.Ready != 2 {
				return fmt.Errorf("job-%d: %d ready", i, status.Ready)
			}
		}
		return nil
	})
	settled, resource := writes(t), time.NewTimer(time.Second)
	for { // until a second goes by without one, and then for five more
		<-resource.C
		now := writes(t)
		if now == settled {
			break
		}
		settled = now
		resource.Reset(time.Second)
	}
	<-time.After(5 * time.Second)
	if now := writes(t); now != settled {
		t.Errorf("%d writes in 5 s", now-settled)
	}
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
