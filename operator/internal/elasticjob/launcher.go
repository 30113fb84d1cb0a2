package elasticjob

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

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
	spec.InitContainers = slices.Insert(spec.InitContainers, 0, corev1.Container{
		Name: launcherName, Image: options.LauncherImage, VolumeMounts: []corev1.VolumeMount{mount},
		Resources:       ofProcessorAndMemory(spec.Containers[mainContainer(spec.Containers)].Resources),
		SecurityContext: closed(spec.Containers[mainContainer(spec.Containers)].SecurityContext),
	})
	addPullSecrets(spec, options.PullSecrets)
}

// ofProcessorAndMemory are the resources of an init container that change neither what the pod takes in all, nor its
// class of quality of service, nor whether a quota or a LimitRange lets it in.
func ofProcessorAndMemory(main corev1.ResourceRequirements) corev1.ResourceRequirements {
	both := func(all corev1.ResourceList) corev1.ResourceList {
		var found corev1.ResourceList
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if quantity, there := all[name]; there {
				if found == nil {
					found = corev1.ResourceList{}
				}
				found[name] = quantity.DeepCopy()
			}
		}
		return found
	}
	return corev1.ResourceRequirements{Requests: both(main.Requests), Limits: both(main.Limits)}
}

// closed is the context of a container that runs as the main one does, and may do nothing more: where a namespace asks
// for these things, the main container has them.
func closed(main *corev1.SecurityContext) *corev1.SecurityContext {
	no := false
	context := &corev1.SecurityContext{}
	if main != nil {
		given := main.DeepCopy()
		context.RunAsUser, context.RunAsGroup, context.RunAsNonRoot = given.RunAsUser, given.RunAsGroup, given.RunAsNonRoot
		context.SeccompProfile = given.SeccompProfile
	}
	context.AllowPrivilegeEscalation = &no
	context.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	return context
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
