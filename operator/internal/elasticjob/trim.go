package elasticjob

import (
	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/internal/topology"
)

// Trim leaves of a pod, a service or a node what the operator reads: of ten thousand pods the rest is most of its
// memory.
// What it has trimmed must not be written back.
func Trim(object any) (any, error) {
	switch object := object.(type) {
	case *corev1.Pod:
		trimPod(object)
	case *corev1.Node:
		trimNode(object)
	case *corev1.Service:
		object.ManagedFields = nil
		object.Annotations = nil
		object.Spec = corev1.ServiceSpec{}
		object.Status = corev1.ServiceStatus{}
	}
	return object, nil
}

func trimPod(pod *corev1.Pod) {
	pod.ManagedFields = nil
	var annotations map[string]string
	kept := []string{AnnotationEnds, annotationUnbegun, annotationMain, annotationAvoids, topology.AnnotationPath}
	for _, name := range kept {
		if value, there := pod.Annotations[name]; there {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[name] = value
		}
	}
	pod.Annotations = annotations
	containers := make([]corev1.Container, len(pod.Spec.Containers))
	for i := range containers {
		containers[i].Name = pod.Spec.Containers[i].Name
	}
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Containers: containers}
	status := &pod.Status
	trimContainers(status.InitContainerStatuses)
	trimContainers(status.ContainerStatuses)
	*status = corev1.PodStatus{
		Phase: status.Phase, Reason: status.Reason, Conditions: status.Conditions,
		Message: status.Message, StartTime: status.StartTime,
		HostIP: status.HostIP, HostIPs: status.HostIPs, PodIP: status.PodIP,
		InitContainerStatuses: status.InitContainerStatuses, ContainerStatuses: status.ContainerStatuses,
	}
}

func trimContainers(statuses []corev1.ContainerStatus) {
	for i := range statuses {
		statuses[i] = corev1.ContainerStatus{Name: statuses[i].Name, State: statuses[i].State}
	}
}
