//go:build apiserver

package apiserver

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

// chaos is a job to which things happen while a part of the cluster is killed. Whatever that is: no rank has two pods,
// no pod that works is touched, and each failure is booked once.
type chaos struct {
	*stage
	random   *rand.Rand
	there    *census
	kubelet  *kubelet
	operator *operator
	size     int
	failures map[int]int32 // by rank
	kept     map[types.UID]string
}

func newChaos(t *testing.T, size int) *chaos {
	s := newStage(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := &chaos{
		stage: s, random: rand.New(rand.NewPCG(seed, 0)), there: takeCensus(s), operator: startOperator(t), size: size,
		failures: map[int]int32{},
	}
	c.kubelet = startKubelet(s)
	return c
}

// listed are the live workers, as the API server has them.
func (c *chaos) listed() []corev1.Pod {
	c.t.Helper()
	var pods corev1.PodList
	err := cluster.client.List(c.t.Context(), &pods, client.InNamespace(c.namespace),
		client.MatchingLabels{"elasticjob.dlrover/replica-type": v1alpha1.ReplicaTypeWorker})
	if err != nil {
		c.t.Fatal(err)
	}
	live := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !alive(&pod) })
	c.random.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	return live
}

func rankOf(pod corev1.Pod) int {
	rank, err := strconv.Atoi(pod.Labels["elasticjob.dlrover/rank-index"])
	if err != nil {
		return -1
	}
	return rank
}

// keep notes which pods nobody may touch from now on: all but the victims, and ranks that a smaller size ends.
func (c *chaos) keep(live []corev1.Pod, victims []corev1.Pod) {
	c.kept = map[types.UID]string{}
	for _, pod := range live {
		if rankOf(pod) < c.size {
			c.kept[pod.UID] = pod.Name
		}
	}
	for _, pod := range victims {
		delete(c.kept, pod.UID)
	}
}

// lose removes some workers, and lets others fail.
func (c *chaos) lose(removed, failed int) {
	c.t.Helper()
	live := c.listed()
	c.keep(live, live[:removed+failed])
	for _, pod := range live[:failed] {
		c.failures[rankOf(pod)]++
		c.kubelet.end(pod, 1)
	}
	c.forceDelete(live[failed : removed+failed]...)
}

func (c *chaos) resize(size int) {
	c.t.Helper()
	c.size = size
	c.keep(c.listed(), nil)
	c.patch(c.job("job"), fmt.Sprintf(`{"spec":{"replicaSpecs":{"worker":{"replicas":%d}}}}`, size))
}

// reach waits until somebody has got some way towards the size, from wherever it is.
func (c *chaos) reach() {
	c.t.Helper()
	from := len(c.listed())
	low, high := min(from, c.size), max(from, c.size)
	until := low
	if high > low {
		until += c.random.IntN(high - low)
	}
	c.await(func() error {
		there := len(c.live(v1alpha1.ReplicaTypeWorker))
		if from < c.size && there < until || from > c.size && there > until {
			return errorf("%d pods on the way from %d to %d, want %d", there, from, c.size, until)
		}
		return nil
	})
	c.t.Logf("%d pods of %d, on the way to %d", len(c.live(v1alpha1.ReplicaTypeWorker)), from, c.size)
}

// recovered waits until the job is whole again, and finds nothing that should not be.
func (c *chaos) recovered() {
	c.t.Helper()
	c.await(c.running("job", int32(c.size)))
	c.check()
	c.await(func() error { // the status is the last to know
		for rank, want := range c.failures {
			if got := ends(c.stage, "job", int32(rank))["Application"]; got != want && rank < c.size {
				return errorf("rank %d has failed %d times, and %d are booked", rank, want, got)
			}
		}
		return nil
	})
}

// check holds at any moment.
func (c *chaos) check() {
	c.t.Helper()
	held, there := map[int]string{}, map[types.UID]bool{}
	for _, pod := range c.listed() {
		if other := held[rankOf(pod)]; other != "" {
			c.t.Errorf("%s and %s both hold rank %d", other, pod.Name, rankOf(pod))
		}
		held[rankOf(pod)], there[pod.UID] = pod.Name, true
	}
	for uid, name := range c.kept {
		if !there[uid] {
			c.t.Errorf("%s has gone, and had done nothing", name)
		}
	}
}

func TestOperatorKilledAtAnyMoment(t *testing.T) {
	c := newChaos(t, 120)
	job := simpleJob("job", 120)
	job.Spec.ReplicaSpecs["worker"].RestartCounts = new(int32(100))
	c.create(job)
	steps := []func(){
		func() {}, func() { c.lose(30, 10) }, func() { c.resize(160) }, func() { c.resize(90) }, func() { c.lose(20, 20) },
		func() { c.lose(40, 0); c.resize(120) },
	}
	for number, step := range steps {
		step()
		c.reach()
		c.operator.kill()
		t.Logf("step %d: killed", number)
		c.check()
		c.operator = startOperator(t)
		c.recovered()
	}
}

// Requests fail half way, watches break, and what a cache has seen is older than what etcd has.
func TestControlPlaneKilledAtAnyMoment(t *testing.T) {
	c := newChaos(t, 60)
	job := simpleJob("job", 60)
	job.Spec.ReplicaSpecs["worker"].RestartCounts = new(int32(100))
	c.create(job)
	kills := []func(*testing.T){killAPIServer, killEtcd}
	for round := range 6 {
		c.reach()
		t.Logf("round %d: killing", round)
		kills[round%2](t)
		c.kubelet.again(c.stage)
		c.recovered()
		switch round % 3 {
		case 0:
			c.lose(15, 10)
		case 1:
			c.resize(90)
		case 2:
			c.resize(60)
		}
	}
	c.recovered()
}

// The node that is blamed first is forgotten first. Neither the operator nor the pods have to be there for that.
func TestSixtyFourNodesAreAvoided(t *testing.T) {
	const workers, blames, most = 10, 8, 64
	s := newStage(t)
	operator := startOperator(t)
	kubelet := startKubelets(s, 200)
	s.create(simpleJob("job", workers))
	var blamed []string
	at := time.Now().Add(-time.Hour)
	for range blames {
		s.await(s.running("job", workers))
		for rank := range workers {
			pod := holder(s, strconv.Itoa(rank))
			blamed = append(blamed, pod.Spec.NodeName)
			at = at.Add(time.Second)
			kubelet.endAt(pod, 201, at)
		}
		s.await(func() error {
			for rank := range int32(workers) {
				if got := ends(s, "job", rank)["Hardware"]; int(got)*workers != len(blamed) {
					return errorf("rank %d: %d ends, %d nodes are blamed", rank, got, len(blamed))
				}
			}
			return nil
		})
	}
	s.await(s.running("job", workers))
	checkAvoided(s, newest(blamed, most))
	operator.kill()
	for _, pod := range s.pods(v1alpha1.ReplicaTypeWorker) {
		if pod.Status.Phase == corev1.PodFailed {
			s.forceDelete(pod)
		}
	}
	startOperator(t)
	s.patch(s.job("job"), fmt.Sprintf(`{"spec":{"replicaSpecs":{"worker":{"replicas":%d}}}}`, workers+1))
	s.await(s.running("job", workers+1))
	checkAvoided(s, newest(blamed, most))
	fresh := holder(s, strconv.Itoa(workers))
	terms := fresh.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) != most {
		t.Errorf("%s avoids %v", fresh.Name, terms)
	}
}

// newest are the last so many different ones.
func newest(all []string, most int) []string {
	var kept []string
	for _, one := range slices.Backward(all) {
		if len(kept) < most && !slices.Contains(kept, one) {
			kept = append(kept, one)
		}
	}
	return kept
}

func checkAvoided(s *stage, want []string) {
	s.t.Helper()
	var got []string
	for _, node := range s.job("job").Status.ExcludedNodes {
		got = append(got, node.Name)
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		s.t.Errorf("avoided: %v\nwant: %v", got, want)
	}
}
