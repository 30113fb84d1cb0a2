package elasticjob

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NoticeTaints are the taints by which autoscalers and clouds say that they are about to take a node away. Their names
// are from the documentation of cluster-autoscaler, Karpenter, GKE and aws-node-termination-handler.
func NoticeTaints() []string {
	return []string{
		"ToBeDeletedByClusterAutoscaler",
		"karpenter.sh/disrupted",
		"cloud.google.com/impending-node-termination",
		"aws-node-termination-handler/spot-itn",
		"aws-node-termination-handler/scheduled-maintenance",
		"aws-node-termination-handler/asg-lifecycle-termination",
	}
}

// Notice says why a node is about to go; empty where none of its taints says so.
func Notice(node *corev1.Node, taints []string) string {
	for i := range node.Spec.Taints {
		if key := node.Spec.Taints[i].Key; slices.Contains(taints, key) {
			return "its node is about to go: taint " + key
		}
	}
	return ""
}
