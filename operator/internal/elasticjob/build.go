package elasticjob

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/gang"
)

// Options are those of the operator that show in pods.
type Options struct {
	MasterImage string
	// MasterPod is where masters with that image run.
	MasterPod MasterPod
	// LauncherImage brings phalanx-run into workers; empty: their own images have it.
	LauncherImage string
	// PullSecrets are names of secrets, in the namespace of the job, for these images.
	PullSecrets []string
	// NodeLostAfter is how long, in seconds, a pod stays on a node that does not answer, where its template does not say.
	NodeLostAfter int64
}

// Pod is the pod that the engine asks for.
func Pod(job *v1alpha1.ElasticJob, create engine.Create, options Options) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:            PodName(job.Name, create.Role, create.ID),
		Namespace:       job.Namespace,
		OwnerReferences: []metav1.OwnerReference{Owner(job)},
		Labels:          map[string]string{},
		Annotations:     map[string]string{},
	}}
	if create.Role == v1alpha1.ReplicaTypeMaster {
		masterPod(job, create, options, pod)
	} else {
		workerPod(job, create, options, pod)
	}
	pod.Labels[LabelName] = job.Name
	pod.Labels[labelRole] = create.Role
	pod.Labels[labelID] = text(create.ID)
	pod.Labels[labelRank] = text(create.Rank)
	pod.Labels[labelRelaunch] = text(create.Before.Total())
	if create.Before.Total() > 0 {
		pod.Annotations[AnnotationEnds] = create.Before.String()
	}
	if create.Unbegun > 0 {
		pod.Annotations[annotationUnbegun] = text(create.Unbegun)
	}
	if name := pod.Spec.Containers[mainContainer(pod.Spec.Containers)].Name; name != mainName {
		pod.Annotations[annotationMain] = name // others may be put before it when the pod is made
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	if len(create.Avoid) > 0 {
		avoid(&pod.Spec, create.Avoid)
		pod.Annotations[annotationAvoids] = strings.Join(create.Avoid, ",")
	}
	leaveLostNodes(&pod.Spec, options.NodeLostAfter)
	return pod
}

// Owner makes an object go with its job.
func Owner(job *v1alpha1.ElasticJob) metav1.OwnerReference {
	return *metav1.NewControllerRef(job, v1alpha1.GroupVersion.WithKind("ElasticJob"))
}

func workerPod(job *v1alpha1.ElasticJob, create engine.Create, options Options, pod *corev1.Pod) {
	spec := job.Spec.ReplicaSpecs[create.Role]
	fromTemplate(spec, pod)
	pod.Labels[labelApp] = appOfWorkers
	if spec.Priority != "" {
		pod.Spec.PriorityClassName = priorityClass(spec.Priority, create.Rank, replicas(spec))
	}
	if together, err := gang.Of(job); err == nil && together != nil { // Desired has told what is wrong with it
		together.Decorate(pod)
	}
	addLauncher(job, options, &pod.Spec)
	if pod.Spec.HostNetwork && pod.Spec.DNSPolicy == "" {
		pod.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet // else its node's, which does not know the master's service
	}
	env := workerEnv(job, create, replicas(spec))
	for i := range pod.Spec.Containers {
		addEnv(&pod.Spec.Containers[i], env)
	}
	for i := range pod.Spec.InitContainers {
		addEnv(&pod.Spec.InitContainers[i], env)
	}
}

func fromTemplate(spec *v1alpha1.ReplicaSpec, pod *corev1.Pod) {
	spec.Template.Spec.DeepCopyInto(&pod.Spec)
	maps.Copy(pod.Labels, spec.Template.Metadata.Labels)
	maps.Copy(pod.Annotations, spec.Template.Metadata.Annotations)
}

// masterPod is the job's own where it brings one, image and command included, else Phalanx's.
func masterPod(job *v1alpha1.ElasticJob, create engine.Create, options Options, pod *corev1.Pod) {
	spec := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeMaster]
	if bringsMaster(job) {
		fromTemplate(spec, pod)
	} else {
		pod.Spec = ownMaster(options.MasterImage, options.MasterPod)
		if spec != nil {
			placeMaster(spec.Template, pod)
		}
		addPullSecrets(&pod.Spec, options.PullSecrets)
	}
	if pod.Spec.PriorityClassName == "" {
		pod.Spec.PriorityClassName = firstPriority(job)
	}
	maps.Copy(pod.Labels, masterLabels(job.Name))
	if _, set := pod.Annotations[safeToEvict]; !set {
		pod.Annotations[safeToEvict] = "false"
	}
	env := []corev1.EnvVar{
		field("POD_NAME", "metadata.name"),
		field("POD_IP", "status.podIP"),
		{Name: "ELASTIC_JOB_NAME", Value: job.Name},
		{Name: "JOB_UID", Value: string(job.UID)},
		{Name: "NODE_NUM", Value: text(replicas(job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]))},
		{Name: "MASTER_EPOCH", Value: text(create.ID)},
		// Flags would end masters before them. What id a node gives the job does not count: the token does.
		{Name: "PHALANX_AWAIT_PLATFORM", Value: "10"}, // seconds
		{Name: "PHALANX_MASTER_JOB_ID", Value: job.Name},
		{Name: "PHALANX_ANY_JOB_ID", Value: "true"},
		tokenEnv(job),
	}
	for i := range pod.Spec.Containers {
		addEnv(&pod.Spec.Containers[i], env)
	}
}

// placeMaster puts Phalanx's master where a template without containers says.
func placeMaster(template v1alpha1.PodTemplate, pod *corev1.Pod) {
	given := template.Spec.DeepCopy()
	maps.Copy(pod.Labels, template.Metadata.Labels)
	maps.Copy(pod.Annotations, template.Metadata.Annotations)
	if len(given.NodeSelector) > 0 {
		pod.Spec.NodeSelector = given.NodeSelector
	}
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, given.Tolerations...)
	pod.Spec.Affinity = given.Affinity
	pod.Spec.PriorityClassName = given.PriorityClassName
	pod.Spec.SchedulerName = given.SchedulerName
	pod.Spec.ImagePullSecrets = given.ImagePullSecrets
}

func bringsMaster(job *v1alpha1.ElasticJob) bool {
	master := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeMaster]
	return master != nil && len(master.Template.Spec.Containers) > 0
}

// MasterAnswers says that the job's master is one that answers the operator, though perhaps not at this moment: it is
// Phalanx's, or has been heard once, as the status shows. A master that a job brings may be any program.
func MasterAnswers(job *v1alpha1.ElasticJob) bool {
	return !bringsMaster(job) || job.Status.World != nil || job.Status.Step != nil
}

// firstPriority is the class of the worker of rank 0. The master has it, too: else it would be the first to be
// preempted, and by the job's own workers.
func firstPriority(job *v1alpha1.ElasticJob) string {
	worker := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
	if worker.Priority != "" {
		return priorityClass(worker.Priority, 0, replicas(worker))
	}
	return worker.Template.Spec.PriorityClassName
}

// avoid keeps a pod off hosts, whatever else its template requires of nodes. Terms of a selector are alternatives, so
// each of them gets the condition. Fields name nodes; the host name label of a node may be another.
func avoid(spec *corev1.PodSpec, hosts []string) {
	var fields []corev1.NodeSelectorRequirement
	for _, host := range hosts {
		fields = append(fields, corev1.NodeSelectorRequirement{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{host},
		})
	}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	node := spec.Affinity.NodeAffinity
	if node.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		node.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{}},
		}
	}
	terms := node.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchFields = append(terms[i].MatchFields, fields...)
	}
}

// leaveLostNodes shortens the 300 s that Kubernetes gives pods on nodes that do not answer.
func leaveLostNodes(spec *corev1.PodSpec, seconds int64) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if tolerated(spec.Tolerations, key) {
			continue
		}
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
}

func tolerated(tolerations []corev1.Toleration, key string) bool {
	for i := range tolerations {
		if tolerations[i].Key == key || tolerations[i].Key == "" {
			return true
		}
	}
	return false
}

// Service is where the pods of a job find its master, whichever pod that is. A master that is not ready is not found:
// on a lost node it would be there for as long as its node is not back.
func Service(job *v1alpha1.ElasticJob) *corev1.Service {
	labels := masterLabels(job.Name)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: MasterService(job.Name), Namespace: job.Namespace, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{Owner(job)},
		},
		Spec: corev1.ServiceSpec{
			Selector: labels,
			Ports:    []corev1.ServicePort{{Name: "grpc", Port: MasterPort}},
		},
	}
}

// Token is the secret that the job's pods, and the operator, know each other by.
func Token(job *v1alpha1.ElasticJob, token string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: TokenSecret(job.Name), Namespace: job.Namespace, Labels: map[string]string{LabelName: job.Name},
			OwnerReferences: []metav1.OwnerReference{Owner(job)},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{TokenKey: []byte(token)},
	}
}

// DescribeCreate is a line for logs and events.
func DescribeCreate(job *v1alpha1.ElasticJob, create engine.Create) string {
	return fmt.Sprintf("%s takes up rank %d: %s", PodName(job.Name, create.Role, create.ID), create.Rank, create.Reason)
}
