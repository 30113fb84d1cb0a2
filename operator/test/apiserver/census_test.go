//go:build apiserver

package apiserver

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// census counts a stage's live pods as events come. To list thousands of them at each event would take the processor
// that is measured.
type census struct {
	mu   sync.Mutex
	live map[types.UID]corev1.Pod
	jobs map[string]int
}

func takeCensus(s *stage) *census {
	c := &census{live: map[types.UID]corev1.Pod{}, jobs: map[string]int{}}
	s.listen(&corev1.Pod{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { c.see(s, object, false) },
		UpdateFunc: func(_, object any) { c.see(s, object, false) },
		DeleteFunc: func(object any) { c.see(s, object, true) },
	})
	return c
}

func (c *census) see(s *stage, object any, gone bool) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.live[pod.UID]
	lives := !gone && alive(pod)
	job := pod.Labels["elasticjob.dlrover/name"]
	switch {
	case lives && !known:
		c.live[pod.UID] = *pod
		c.jobs[job]++
	case known && !lives:
		delete(c.live, pod.UID)
		c.jobs[job]--
	default:
		return
	}
	s.ring()
}

// has says what is missing until a job has so many live pods, its master's among them, and none of those that are lost.
func (c *census) has(job string, pods int, lost ...corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range lost {
		if _, there := c.live[lost[i].UID]; there {
			return fmt.Errorf("%s is still there", lost[i].Name)
		}
	}
	if c.jobs[job] != pods {
		return fmt.Errorf("%s has %d pods, want %d", job, c.jobs[job], pods)
	}
	return nil
}

// total is has for all jobs together.
func (c *census) total(pods int, lost ...corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range lost {
		if _, there := c.live[lost[i].UID]; there {
			return fmt.Errorf("%s is still there", lost[i].Name)
		}
	}
	if len(c.live) != pods {
		return fmt.Errorf("%d pods, want %d", len(c.live), pods)
	}
	return nil
}

// workers are some live workers that is holds for.
func (c *census) workers(count int, is func(corev1.Pod) bool) []corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []corev1.Pod
	for _, pod := range c.live {
		if len(found) < count && pod.Labels["elasticjob.dlrover/replica-type"] == "worker" && is(pod) {
			found = append(found, pod)
		}
	}
	return found
}
