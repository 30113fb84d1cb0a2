package gang

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Resources is what so many pods of a spec ask for together, by the rules of Kubernetes: containers at the same time,
// init containers before them one by one, those that go on (sidecars) beside all that come later.
func Resources(spec *corev1.PodSpec, pods int32) map[string]any {
	running := corev1.ResourceList{}
	for i := range spec.Containers {
		add(running, requests(&spec.Containers[i]))
	}
	sidecars, starting := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.InitContainers {
		container := &spec.InitContainers[i]
		if policy := container.RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			add(sidecars, requests(container))
			raise(starting, sidecars)
			continue
		}
		alone := sidecars.DeepCopy()
		add(alone, requests(container))
		raise(starting, alone)
	}
	add(running, sidecars)
	raise(running, starting)
	add(running, spec.Overhead)
	total := map[string]any{}
	for name, quantity := range running {
		quantity.Mul(int64(pods))
		total[string(name)] = quantity.String()
	}
	return total
}

// requests of a container: what it has a limit of and no request, it asks for as much.
func requests(container *corev1.Container) corev1.ResourceList {
	asked := corev1.ResourceList{}
	for name, quantity := range container.Resources.Limits {
		asked[name] = quantity
	}
	for name, quantity := range container.Resources.Requests {
		asked[name] = quantity
	}
	return asked
}

func add(sum, more corev1.ResourceList) {
	for name, quantity := range more {
		total := resource.Quantity{Format: quantity.Format}
		if before, there := sum[name]; there {
			total = before.DeepCopy()
		}
		total.Add(quantity)
		sum[name] = total
	}
}

func raise(most, others corev1.ResourceList) {
	for name, quantity := range others {
		if before, there := most[name]; !there || quantity.Cmp(before) > 0 {
			most[name] = quantity.DeepCopy()
		}
	}
}
