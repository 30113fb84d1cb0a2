package elasticjob

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// safeToEvict keeps the cluster autoscaler from moving the master to save a node.
const safeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// ownMaster is the pod of Phalanx's master. The first node that joins tells it the job's shape (--nnodes of the user's
// command). With --resume a new one goes on with what the agents tell it. It needs no rights in the cluster.
func ownMaster(image string) corev1.PodSpec {
	no, yes := false, true
	const state = "/var/lib/phalanx"
	return corev1.PodSpec{
		AutomountServiceAccountToken: &no,
		EnableServiceLinks:           &no,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   &yes,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{{
			Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}},
		Containers: []corev1.Container{{
			Name:  "main",
			Image: image,
			Command: []string{
				"phalanx-master", "--host=$(POD_IP)", "--port=50001", "--spec-from-hello", "--resume",
				"--state-dir=" + state + "/job",
			},
			Ports:        []corev1.ContainerPort{{Name: "grpc", ContainerPort: MasterPort}},
			VolumeMounts: []corev1.VolumeMount{{Name: "state", MountPath: state}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
				},
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}
