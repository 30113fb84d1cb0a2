package elasticjob

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/internal/engine"
)

// blocking are the reasons of a waiting container that no waiting heals: the image or the pod's references are wrong.
var blocking = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"CreateContainerConfigError": true, "CreateContainerError": true,
}

// Observe translates the pods of a job. Pods whose labels name no role, id and rank are nobody's and left out.
func Observe(pods []*corev1.Pod) []engine.Pod {
	observed := make([]engine.Pod, 0, len(pods))
	for _, pod := range pods {
		if one, ok := observe(pod); ok {
			observed = append(observed, one)
		}
	}
	return observed
}

func observe(pod *corev1.Pod) (engine.Pod, bool) {
	id, idErr := strconv.ParseInt(pod.Labels[labelID], 10, 32)
	rank, rankErr := strconv.ParseInt(pod.Labels[labelRank], 10, 32)
	role := pod.Labels[labelRole]
	if idErr != nil || rankErr != nil || role == "" || id < 0 || rank < 0 {
		return engine.Pod{}, false
	}
	seen := engine.Pod{
		Name: pod.Name, UID: string(pod.UID), Role: role, ID: int32(id), Rank: int32(rank),
		State: state(pod.Status.Phase), Leaving: pod.DeletionTimestamp != nil, Host: pod.Spec.NodeName,
		Began:  began(pod),
		Before: engine.ParseCounts(pod.Annotations[AnnotationEnds]), Unbegun: unbegun(pod),
		Address: pod.Status.PodIP, HostAddresses: hostAddresses(pod),
	}
	if pod.DeletionTimestamp != nil {
		seen.GoesAt = pod.DeletionTimestamp.Time
	}
	seen.End = endOf(pod)
	seen.State, seen.Lingers = ended(pod, seen.State)
	seen.Avoids = hosts(pod.Annotations[annotationAvoids])
	for _, condition := range pod.Status.Conditions {
		switch {
		case condition.Type == corev1.PodReady:
			seen.Ready = condition.Status == corev1.ConditionTrue && seen.Live()
		case condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse:
			seen.Waiting = condition.Reason + ": " + condition.Message
			seen.NoPlace = condition.Reason == corev1.PodReasonUnschedulable
		}
	}
	seen.Blocked.Reason = blockedBy(pod)
	return seen, true
}

// hostAddresses are those of the pod's node.
func hostAddresses(pod *corev1.Pod) []string {
	if pod.Status.HostIP == "" {
		return nil
	}
	addresses := []string{pod.Status.HostIP}
	for _, host := range pod.Status.HostIPs {
		addresses = append(addresses, host.IP)
	}
	return addresses
}

func state(phase corev1.PodPhase) engine.State {
	switch phase {
	case corev1.PodSucceeded:
		return engine.Succeeded
	case corev1.PodFailed:
		return engine.Failed
	case corev1.PodRunning, corev1.PodUnknown:
		return engine.Running
	}
	return engine.Pending
}

// ended is the state of a pod by the end of its main container, whatever its other containers do: a pod is Running for
// as long as one of them is, and has Failed where one of them has. lingers: others run on.
func ended(pod *corev1.Pod, phase engine.State) (state engine.State, lingers bool) {
	by := ownEnd(pod)
	switch {
	case phase == engine.Running && by != nil && slices.ContainsFunc(pod.Status.ContainerStatuses, runs):
		if by.ExitCode == 0 {
			return engine.Succeeded, true
		}
		return engine.Failed, true
	case phase == engine.Failed && by != nil && by.ExitCode == 0 && pod.Status.Reason == "" && disruption(pod) == "":
		return engine.Succeeded, false
	case phase == engine.Succeeded && by == nil && mainStatus(pod) != nil:
		return engine.Failed, false // it was told to end, and has obeyed: its work is not done
	}
	return phase, false
}

// ownEnd is the end of a pod's main container that came before anybody asked for the pod's deletion; nil: there is
// none.
func ownEnd(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	main := mainStatus(pod)
	if main == nil || main.State.Terminated == nil {
		return nil
	}
	end := main.State.Terminated
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return end
	}
	// In whole seconds, as both times are. Of the same one, an end by a signal is the deletion's.
	asked := pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	bySignal := end.ExitCode == engine.ExitKilled || end.ExitCode == engine.ExitTerminated
	if end.FinishedAt.After(asked) || bySignal && end.FinishedAt.Time.Equal(asked) {
		return nil
	}
	return end
}

func runs(container corev1.ContainerStatus) bool { return container.State.Running != nil }

// endOf: the cluster's own word counts before the exit code, which is only what its signal did.
func endOf(pod *corev1.Pod) engine.End {
	end := engine.End{Disruption: disruption(pod), Refused: refused(pod), At: pod.CreationTimestamp.Time}
	end.OverLimits = pod.Status.Reason == evicted && end.Disruption == ""
	if end.OverLimits {
		end.Detail = clip(pod.Status.Message)
	}
	if main := mainStatus(pod); main != nil && main.State.Terminated != nil {
		last := main.State.Terminated
		end.OutOfMemory = last.Reason == "OOMKilled"
		// 255 without a word is what a runtime says of a program whose end it has not seen: the machine was off.
		end.Exited, end.ExitCode = last.ExitCode != 255 || last.Reason != "Unknown", last.ExitCode
		end.Detail = cmp.Or(end.Detail, clip(last.Message))
		end.At = last.FinishedAt.Time
	}
	return end
}

// refused: by a kubelet that had no room for it, or not what it was to get, as of devices that have failed.
func refused(pod *corev1.Pod) bool {
	switch reason := pod.Status.Reason; reason {
	case "UnexpectedAdmissionError", "TopologyAffinityError":
		return true
	default:
		return strings.HasPrefix(reason, outOf)
	}
}

// disruption: a condition says it where the API server or the kubelet has put one, the reason of the status elsewhere.
// A pod that is Evicted without the condition has taken more than its own limits allow, of its disk, say: the program's
// doing, which another pod would do again.
func disruption(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			return condition.Reason
		}
	}
	switch reason := pod.Status.Reason; reason {
	case "NodeLost", "NodeShutdown", "Terminated", "NodeAffinity", "Preempting":
		return reason
	default:
		if refused(pod) {
			return reason
		}
	}
	return ""
}

// evicted is the kubelet's reason for pods that it has ended: for its own sake, and then a condition says so, or for
// theirs.
const evicted = "Evicted"

// outOf begins the reason of a kubelet that refuses a pod for want of something, as OutOfcpu or OutOfnvidia.com/gpu:
// the scheduler did not know of what else is there.
const outOf = "OutOf"

// began says that the program of a pod has run.
func began(pod *corev1.Pod) bool {
	main := mainStatus(pod)
	return main != nil && (main.State.Running != nil || main.State.Terminated != nil)
}

// hosts are those that an annotation names. It may be anything: users can write it.
func hosts(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, ",")
}

// unbegun is 0 where the annotation is not there, or is no number: users can write it.
func unbegun(pod *corev1.Pod) int32 {
	count, err := strconv.ParseInt(pod.Annotations[annotationUnbegun], 10, 32)
	if err != nil {
		return 0
	}
	return int32(max(count, 0))
}

// blockedBy says why a pod cannot start. Since when, the pod does not say: it may have pulled for long before it
// failed.
func blockedBy(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodPending {
		return ""
	}
	for _, container := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if waiting := container.State.Waiting; waiting != nil && blocking[waiting.Reason] {
			return waiting.Reason + ": " + clip(waiting.Message)
		}
	}
	return ""
}

func mainStatus(pod *corev1.Pod) *corev1.ContainerStatus {
	name, noted := pod.Annotations[annotationMain]
	if !noted {
		name = pod.Spec.Containers[mainContainer(pod.Spec.Containers)].Name
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// mainName is that of the container that trains, where a pod has several.
const mainName = "main"

// annotationMain names it where its name is another.
const annotationMain = "phalanx.elasticjob/main-container"

// mainContainer is the index of the one that trains: "main", else the first.
func mainContainer(containers []corev1.Container) int {
	for i := range containers {
		if containers[i].Name == mainName {
			return i
		}
	}
	return 0
}

func clip(message string) string {
	const most = 256
	if len(message) > most {
		return message[:most] + "..."
	}
	return message
}
