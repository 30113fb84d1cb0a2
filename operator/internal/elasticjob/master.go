package elasticjob

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// safeToEvict keeps the cluster autoscaler from moving the master to save a node.
const safeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// MasterPod is where Phalanx's masters run, and with what; the zero one leaves it to Kubernetes and to this package.
type MasterPod struct {
	NodeSelector    map[string]string            `json:"nodeSelector,omitempty"`
	Tolerations     []corev1.Toleration          `json:"tolerations,omitempty"`
	Resources       *corev1.ResourceRequirements `json:"resources,omitempty"`
	ImagePullPolicy corev1.PullPolicy            `json:"imagePullPolicy,omitempty"`
}

// ParseMasterPod reads one from JSON.
func ParseMasterPod(text string) (MasterPod, error) {
	var pod MasterPod
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&pod); err != nil {
		return MasterPod{}, fmt.Errorf("expected a JSON object of nodeSelector, tolerations, resources and "+
			"imagePullPolicy: %w", err)
	}
	return pod, nil
}

// ownMaster is the pod of Phalanx's master. The first node that joins tells it the job's shape (--nnodes of the user's
// command). With --resume a new one goes on with what the agents tell it. It needs no rights in the cluster.
func ownMaster(image string, given MasterPod) corev1.PodSpec {
	no, yes := false, true
	const state = "/var/lib/phalanx"
	resources := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
	}
	if given.Resources != nil {
		resources = *given.Resources.DeepCopy()
	}
	return corev1.PodSpec{
		NodeSelector:                 maps.Clone(given.NodeSelector),
		Tolerations:                  slices.Clone(given.Tolerations),
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
			Name:            "main",
			Image:           image,
			ImagePullPolicy: given.ImagePullPolicy,
			Command: []string{
				"phalanx-master", "--host=$(POD_IP)", "--port=50001", "--spec-from-hello", "--resume",
				"--state-dir=" + state + "/job",
			},
			Ports:        []corev1.ContainerPort{{Name: "grpc", ContainerPort: MasterPort}},
			VolumeMounts: []corev1.VolumeMount{{Name: "state", MountPath: state}},
			Resources:    resources,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no,
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}
