package elasticjob

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/internal/engine"
)

func TestNodeState(t *testing.T) {
	node := func(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
		made := &corev1.Node{}
		made.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: ready},
		}
		for _, key := range taints {
			made.Spec.Taints = append(made.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
		return made
	}
	cases := map[string]struct {
		node *corev1.Node
		want engine.Node
	}{
		"it works":                     {node(corev1.ConditionTrue), engine.NodeReady},
		"it says that it does not":     {node(corev1.ConditionFalse), engine.NodeNotReady},
		"nobody hears of it":           {node(corev1.ConditionUnknown), engine.NodeNotReady},
		"somebody says that it is off": {node(corev1.ConditionUnknown, corev1.TaintNodeOutOfService), engine.NodeGone},
		"a taint that says less":       {node(corev1.ConditionTrue, corev1.TaintNodeUnreachable), engine.NodeReady},
		"it has said nothing yet":      {&corev1.Node{}, engine.NodeReady},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := NodeState(tc.node); got != tc.want {
				t.Errorf("whole: %v, want %v", got, tc.want)
			}
			trimmed, err := Trim(tc.node)
			if err != nil {
				t.Fatal(err)
			}
			if got := NodeState(trimmed.(*corev1.Node)); got != tc.want {
				t.Errorf("trimmed: %v, want %v", got, tc.want)
			}
		})
	}
}
