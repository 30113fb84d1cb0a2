//go:build apiserver

package chart

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/nodetaint"
	"phalanx/operator/internal/topology"
)

// What the chart installs is taken by the API server, and with no other rights than that the operator runs a job in
// another namespace.
func TestAJobRunsInWhatIsInstalled(t *testing.T) {
	r := install(t, "imagePullSecrets[0].name=key")
	r.operate()
	ns := namespace(t)
	create(t, jobOf(ns, "job", 2))
	master := awaitPod(t, ns, "elasticjob-job-dlrover-master-0", isThere)
	if got := master.Spec.Containers[0].Image; got != "r.io/p/dlrover-master:0.1.0" {
		t.Errorf("the master's image is %s", got)
	}
	if got := master.Spec.ImagePullSecrets; len(got) != 1 || got[0].Name != "key" {
		t.Errorf("the master's secrets are %v", got)
	}
	awaitPod(t, ns, "job-edljob-worker-1", isThere)
	await(t, &v1alpha1.ElasticJobList{}, ns, func(list client.ObjectList) error {
		if status := list.(*v1alpha1.ElasticJobList).Items[0].Status; status.Phase != v1alpha1.PhasePending {
			return fmt.Errorf("phase %q", status.Phase)
		}
		return nil
	})
	for _, path := range []string{"/healthz", "/readyz"} { // the operator works, so it answers by now
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", r.healthPort, path))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

// Of two operators one works. When it ends, the other does.
func TestTheOtherOperatorTakesOver(t *testing.T) {
	r := install(t)
	end := r.operate()
	ns := namespace(t)
	create(t, jobOf(ns, "first", 1))
	awaitPod(t, ns, "first-edljob-worker-0", isThere)
	r.operate("--metrics-bind-address=0", "--health-probe-bind-address=0") // on one machine
	end()
	create(t, jobOf(ns, "second", 1))
	awaitPod(t, ns, "second-edljob-worker-0", isThere)
}

// Nobody who names no account can do anything by this chart.
func TestTheDefaultAccountHasNoRights(t *testing.T) {
	install(t)
	for _, verb := range []string{"list", "create", "delete"} {
		for _, resource := range []authorizationv1.ResourceAttributes{
			{Resource: "pods"}, {Group: "elastic.iml.github.io", Resource: "elasticjobs"}, {Resource: "configmaps"},
		} {
			resource.Namespace, resource.Verb = home, verb
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + home + ":default", ResourceAttributes: &resource,
			}}
			create(t, review)
			if review.Status.Allowed {
				t.Errorf("default may %s %s: %s", verb, resource.Resource, review.Status.Reason)
			}
		}
	}
}

func TestMetricsAreForTheirReaders(t *testing.T) {
	ns := namespace(t)
	for _, name := range []string{"reader", "other"} {
		account := &corev1.ServiceAccount{}
		account.Name, account.Namespace = name, ns
		create(t, account)
	}
	r := install(t, "metrics.readers[0].namespace="+ns, "metrics.readers[0].name=reader")
	r.operate()
	create(t, jobOf(ns, "job", 1))
	awaitPod(t, ns, "job-edljob-worker-0", isThere) // the operator works
	for bearer, want := range map[string]int{
		"": http.StatusUnauthorized, token(t, ns, "other"): http.StatusForbidden, token(t, ns, "reader"): http.StatusOK,
	} {
		status, text := r.metrics(bearer)
		if status != want {
			t.Errorf("status %d, want %d: %.200s", status, want, text)
		}
		if want == http.StatusOK && !strings.Contains(text, `controller_runtime_reconcile_total{controller="elasticjob"`) {
			t.Errorf("no count of reconciles in %.2000s", text)
		}
	}
}

// metrics asks as who has a token.
func (r *release) metrics(bearer string) (int, string) {
	r.t.Helper()
	select {
	case <-r.output.serves:
	case <-time.After(patience):
		r.t.Fatalf("no metrics are served after %v", patience)
	}
	plain := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet,
		fmt.Sprintf("https://127.0.0.1:%d/metrics", r.metricsPort), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := plain.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	var text bytes.Buffer
	if _, err := io.Copy(&text, response.Body); err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, text.String()
}

// runOn puts a job's pod on a node that is made for it.
func runOn(t *testing.T, pod *corev1.Pod, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	node.Name = name
	create(t, node)
	t.Cleanup(func() {
		if err := cluster.client.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: name}}
	if err := cluster.client.SubResource("binding").Create(t.Context(), pod, binding); err != nil {
		t.Fatal(err)
	}
	get(t, pod, pod.Namespace, pod.Name)
	pod.Status.Phase = corev1.PodRunning
	if err := cluster.client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return node
}

// avoids says what is missing until a pod is there that avoids a node.
func avoids(node string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if affinity := pod.Spec.Affinity; affinity == nil || !strings.Contains(affinity.String(), node) {
			return fmt.Errorf("%s may be on %s", pod.Name, node)
		}
		return nil
	}
}

func TestABadNodeIsTainted(t *testing.T) {
	install(t, "controller.allowNodeTaints=true").operate()
	ns := namespace(t)
	create(t, jobOf(ns, "job", 1))
	pod := awaitPod(t, ns, "job-edljob-worker-0", isThere)
	node := runOn(t, pod, "bad")
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:  pod.Spec.Containers[0].Name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 201, FinishedAt: metav1.Now()}},
	}}
	if err := cluster.client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	await(t, &corev1.NodeList{}, "", func(list client.ObjectList) error {
		for _, found := range list.(*corev1.NodeList).Items {
			for _, taint := range found.Spec.Taints {
				if found.Name == node.Name && taint.ToString() == "phalanx.elasticjob/unhealthy=Hardware:NoSchedule" {
					return nil
				}
			}
		}
		return fmt.Errorf("no taint on %s", node.Name)
	})
	awaitPod(t, ns, "job-edljob-worker-1", avoids("bad"))
	get(t, node, "", node.Name)
	if mark := node.Annotations[nodetaint.Key]; !strings.Contains(mark, ns+"/job") || !strings.Contains(mark, "201") {
		t.Errorf("the mark is %q", mark)
	}
}

// No autoscaler is here: its taint is.
func TestANodeThatIsAboutToGo(t *testing.T) {
	install(t).operate()
	ns := namespace(t)
	create(t, jobOf(ns, "job", 1))
	node := runOn(t, awaitPod(t, ns, "job-edljob-worker-0", isThere), "going")
	patch(t, node, `{"spec":{"taints":[{"key":"karpenter.sh/disrupted","effect":"NoSchedule"}]}}`)
	awaitPod(t, ns, "job-edljob-worker-1", avoids("going"))
	await(t, &v1alpha1.ElasticJobList{}, ns, func(list client.ObjectList) error {
		ranks := list.(*v1alpha1.ElasticJobList).Items[0].Status.Ranks
		if len(ranks) != 1 || ranks[0].Ends["Disruption"] != 1 {
			return fmt.Errorf("ranks %v", ranks)
		}
		return nil
	})
}

// Lines of the ConfigMap reach the pods of jobs, and a change of them does while the operator runs.
func TestAChangeOfTheTopologyIsHeard(t *testing.T) {
	install(t).operate()
	ns := namespace(t)
	create(t, jobOf(ns, "job", 2))
	for i, host := range []string{"192.168.0.1", "192.168.0.2"} {
		pod := awaitPod(t, ns, fmt.Sprintf("job-edljob-worker-%d", i), isThere)
		pod.Status.Phase, pod.Status.HostIP = corev1.PodRunning, host
		pod.Status.HostIPs = []corev1.HostIP{{IP: host}}
		if err := cluster.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	var config corev1.ConfigMap
	get(t, &config, home, "node-topology-config")
	for _, change := range []struct{ lines, worker, rack string }{
		{`asw-0 psw-0 192.168.0.1\nasw-1 psw-0 192.168.0.2`, "job-edljob-worker-1", "asw-1"},
		{`asw-0 psw-0 192.168.0.1\nasw-0 psw-0 192.168.0.2\nnonsense`, "job-edljob-worker-1", "asw-0"},
		{`asw-0 psw-0 192.168.0.1`, "job-edljob-worker-1", ""},
	} {
		patch(t, &config, `{"data":{"topology_config":"`+change.lines+`"}}`)
		awaitPod(t, ns, change.worker, func(pod *corev1.Pod) error {
			if got := pod.Labels[topology.LabelRack]; got != change.rack {
				return fmt.Errorf("%s is under %q, want %q", pod.Name, got, change.rack)
			}
			return nil
		})
	}
	pod := awaitPod(t, ns, "job-edljob-worker-0", isThere)
	if got := pod.Annotations[topology.AnnotationPath]; got != "psw-0/asw-0/192.168.0.1" {
		t.Errorf("the way to it is %q", got)
	}
}

// What an administrator has written by kubectl edit survives an upgrade of a chart that says nothing about it.
func TestAnEditedTopologySurvivesAnUpgrade(t *testing.T) {
	install(t)
	var config corev1.ConfigMap
	get(t, &config, home, "node-topology-config")
	patch(t, &config, `{"data":{"topology_config":"asw-0 psw-0 192.168.0.1"}}`)
	_, err := helm(t.Context(), "upgrade", "phalanx", cluster.chart, "--namespace", home, "--set", "controller.workers=2")
	if err != nil {
		t.Fatal(err)
	}
	get(t, &config, home, "node-topology-config")
	if got := config.Data["topology_config"]; got != "asw-0 psw-0 192.168.0.1" {
		t.Errorf("the lines are %q", got)
	}
}

// Where both have written lines, helm does not take the administrator's away without a word.
func TestTwoTopologiesAreAConflict(t *testing.T) {
	install(t, "topoMapper.topology_config=asw-0 psw-0 192.168.0.1")
	var config corev1.ConfigMap
	get(t, &config, home, "node-topology-config")
	const edited = "asw-0 psw-0 192.168.0.2"
	patch(t, &config, `{"data":{"topology_config":"`+edited+`"}}`)
	_, err := helm(t.Context(), "upgrade", "phalanx", cluster.chart, "--namespace", home,
		"--set", "topoMapper.topology_config=asw-0 psw-0 192.168.0.3")
	if err == nil || !strings.Contains(err.Error(), "conflict") {
		t.Errorf("got %v", err)
	}
	get(t, &config, home, "node-topology-config")
	if got := config.Data["topology_config"]; got != edited {
		t.Errorf("the lines are %q", got)
	}
}

// The definitions, and jobs with them, outlive the release.
func TestJobsOutliveTheRelease(t *testing.T) {
	install(t)
	ns := namespace(t)
	create(t, jobOf(ns, "job", 1))
	if _, err := helm(t.Context(), "uninstall", "phalanx", "--namespace", home); err != nil {
		t.Fatal(err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	get(t, &definition, "", "elasticjobs.elastic.iml.github.io")
	if definition.DeletionTimestamp != nil {
		t.Error("the definition is being deleted")
	}
	get(t, &v1alpha1.ElasticJob{}, ns, "job")
	install(t) // takes what is there
}
