package elasticjob

import (
	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/nodetaint"
)

// NodeState says how a node that is there is. The taint out-of-service is people's word that the machine is off: its
// pods are no more, although nobody says so.
func NodeState(node *corev1.Node) engine.Node {
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].Key == corev1.TaintNodeOutOfService {
			return engine.NodeGone
		}
	}
	for i := range node.Status.Conditions {
		condition := &node.Status.Conditions[i]
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return engine.NodeNotReady
		}
	}
	return engine.NodeReady
}

func trimNode(node *corev1.Node) {
	node.ManagedFields = nil
	mark, marked := node.Annotations[nodetaint.Key]
	node.Annotations = nil
	if marked {
		node.Annotations = map[string]string{nodetaint.Key: mark}
	}
	node.Spec = corev1.NodeSpec{Taints: node.Spec.Taints}
	var ready []corev1.NodeCondition
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			// A heartbeat changes its times alone.
			ready = append(ready, corev1.NodeCondition{Type: condition.Type, Status: condition.Status})
		}
	}
	node.Status = corev1.NodeStatus{Conditions: ready, Addresses: node.Status.Addresses}
}
