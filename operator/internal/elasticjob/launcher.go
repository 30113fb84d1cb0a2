package elasticjob

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"phalanx/operator/api/v1alpha1"
)

// AnnotationLauncher of an ElasticJob is "none" where its workers bring phalanx-run themselves.
const AnnotationLauncher = "phalanx.elasticjob/launcher"

// launcherFolder is where workers find phalanx-run and its Python files: bin/phalanx-run below it looks for these
// beside itself, and takes the Python that is on PATH. images/launcher copies to there.
const launcherFolder = "/phalanx"

const launcherName = "phalanx-launcher" // of the volume and of the init container

// addLauncher gives a worker phalanx-run by an init container that copies it.
func addLauncher(job *v1alpha1.ElasticJob, options Options, spec *corev1.PodSpec) {
	if options.LauncherImage == "" || job.Annotations[AnnotationLauncher] == "none" {
		return
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name: launcherName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	})
	mount := corev1.VolumeMount{Name: launcherName, MountPath: launcherFolder, ReadOnly: true}
	for i := range spec.Containers {
		spec.Containers[i].VolumeMounts = append(spec.Containers[i].VolumeMounts, mount)
	}
	mount.ReadOnly = false
	no := false
	spec.InitContainers = slices.Insert(spec.InitContainers, 0, corev1.Container{
		Name: launcherName, Image: options.LauncherImage, VolumeMounts: []corev1.VolumeMount{mount},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
			},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	})
	addPullSecrets(spec, options.PullSecrets)
}

// addPullSecrets adds those that are not there.
func addPullSecrets(spec *corev1.PodSpec, names []string) {
	for _, name := range names {
		reference := corev1.LocalObjectReference{Name: name}
		if !slices.Contains(spec.ImagePullSecrets, reference) {
			spec.ImagePullSecrets = append(spec.ImagePullSecrets, reference)
		}
	}
}
