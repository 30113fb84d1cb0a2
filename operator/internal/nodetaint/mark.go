// Package nodetaint keeps every job of the cluster off nodes that one of them has found bad, for as long as that job
// avoids them: by a taint, and a mark beside it that says why and until when.
package nodetaint

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Key is that of the taint, and of the annotation that has the mark.
const Key = "phalanx.elasticjob/unhealthy"

// value is the taint's: the class of ends that blame a node.
const value = "Hardware"

// Blame is one job's word against a node.
type Blame struct {
	Job    string    `json:"job"` // namespace/name
	Reason string    `json:"reason"`
	Until  time.Time `json:"until"`
}

// Change is what becomes of a node.
type Change int

const (
	Keep  Change = iota
	Taint        // and mark
	Clear        // of both
)

// Decide looks at a node's mark (empty: it has none), and at what jobs say of it. `at` is when to look again; zero:
// when something changes. A taint that was removed while its mark holds is not put back: somebody knows better, until a
// job says more. Pure.
func Decide(mark string, blames []Blame, now time.Time) (change Change, blame Blame, at time.Time) {
	var newest Blame
	for _, one := range blames {
		later := cmp.Or(one.Until.Compare(newest.Until), cmp.Compare(newest.Job, one.Job)) > 0
		if one.Until.After(now) && later {
			newest = one
		}
	}
	marked := readMark(mark)
	switch {
	case newest.Until.After(marked.Until):
		return Taint, newest, newest.Until
	case marked.Until.After(now):
		return Keep, marked, marked.Until
	case mark != "":
		return Clear, marked, time.Time{}
	}
	return Keep, Blame{}, time.Time{}
}

// readMark: one that cannot be read holds no longer.
func readMark(mark string) Blame {
	var blame Blame
	if err := json.Unmarshal([]byte(mark), &blame); err != nil {
		return Blame{}
	}
	return blame
}

// without are the taints of others.
func without(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(taint corev1.Taint) bool { return taint.Key == Key })
}

// patch is what brings the change about, at that version of the node alone.
func patch(node *corev1.Node, change Change, blame Blame) ([]byte, error) {
	taints, mark := without(node.Spec.Taints), any(nil)
	if change == Taint {
		text, err := json.Marshal(blame)
		if err != nil {
			return nil, err
		}
		taints = append(taints, corev1.Taint{Key: Key, Value: value, Effect: corev1.TaintEffectNoSchedule})
		mark = string(text)
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "annotations": map[string]any{Key: mark}},
		"spec":     map[string]any{"taints": taints},
	})
}
