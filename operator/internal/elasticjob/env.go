package elasticjob

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

// MasterAddress is where agents, and the operator, find the job's master.
func MasterAddress(job *v1alpha1.ElasticJob) string {
	return fmt.Sprintf("%s.%s.svc:%d", MasterService(job.Name), job.Namespace, MasterPort)
}

// workerEnv is what a worker's containers find in their environment: DLRover's variables, and Phalanx's.
func workerEnv(job *v1alpha1.ElasticJob, create engine.Create, replicas int32) []corev1.EnvVar {
	address := MasterAddress(job)
	id, rank, count := text(create.ID), text(create.Rank), text(replicas)
	return []corev1.EnvVar{
		field("POD_NAME", "metadata.name"),
		field("POD_IP", "status.podIP"),
		field("NODE_IP", "status.hostIP"),
		{Name: "ELASTIC_JOB_NAME", Value: job.Name},
		{Name: "JOB_UID", Value: string(job.UID)},
		{Name: "NODE_TYPE", Value: create.Role},
		{Name: "NODE_ID", Value: id},
		{Name: "NODE_NUM", Value: count},
		{Name: "NODE_RANK", Value: rank},
		{Name: "WORLD_SIZE", Value: count}, // of nodes, as in DLRover; the launcher sets that of its processes
		{Name: "RANK", Value: rank},
		{Name: "DLROVER_MASTER_ADDR", Value: address},
		{Name: "DLROVER_MASTER_SERVICE_ADDR", Value: address},
		{Name: "PHALANX_MASTER_ADDR", Value: address},
		tokenEnv(job),
		{Name: "DLROVER_MASTER_SERVICE_TYPE", Value: "grpc"},
		{Name: "DLROVER_TRAINING_ELASTIC_MODE", Value: "base"},
		{Name: "GRPC_ENABLE_FORK_SUPPORT", Value: "false"},
		{Name: "MONITOR_ENABLED", Value: "true"},
		{Name: "WORKER_TYPE", Value: create.Role},
		{Name: "WORKER_ID", Value: id},
		{Name: "WORKER_NUM", Value: count},
		{Name: "WORKER_RANK", Value: rank},
	}
}

// tokenEnv is how a container of the job knows the others (docs/formats/credentials.md).
func tokenEnv(job *v1alpha1.ElasticJob) corev1.EnvVar {
	return corev1.EnvVar{Name: "PHALANX_TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: TokenSecret(job.Name)}, Key: TokenKey,
	}}}
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{
		Name:      name,
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}},
	}
}

// addEnv puts variables in front, so that the template's own may refer to them. What the template sets itself stays.
func addEnv(container *corev1.Container, added []corev1.EnvVar) {
	own := map[string]bool{}
	for _, variable := range container.Env {
		own[variable.Name] = true
	}
	var env []corev1.EnvVar
	for _, variable := range added {
		if !own[variable.Name] {
			env = append(env, variable)
		}
	}
	container.Env = append(env, container.Env...)
}
