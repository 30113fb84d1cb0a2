//go:build apiserver

package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// rendered is what the chart makes, by kind and name.
type rendered map[string][]byte

func render(t *testing.T, set ...string) (rendered, error) {
	t.Helper()
	arguments := []string{"template", "phalanx", chartFolder, "--namespace", "dlrover"}
	for _, one := range set {
		if path, isFile := strings.CutPrefix(one, "file:"); isFile {
			arguments = append(arguments, "--values", path)
			continue
		}
		arguments = append(arguments, "--set", one)
	}
	text, err := helm(t.Context(), arguments...)
	if err != nil {
		return nil, err
	}
	made := rendered{}
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(object.Object) == 0 {
			continue
		}
		key := object.GetKind() + "/" + object.GetName()
		if made[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		made[key] = []byte(document)
	}
	return made, nil
}

func mustRender(t *testing.T, set ...string) rendered {
	t.Helper()
	made, err := render(t, set...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// read reads one object strictly: a field that its kind does not have is an error.
func read[T any](t *testing.T, made rendered, key string) *T {
	t.Helper()
	var object T
	text, there := made[key]
	if !there {
		t.Fatalf("there is no %s", key)
	}
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return &object
}

func (r rendered) pod(t *testing.T) *corev1.PodSpec {
	t.Helper()
	return &read[appsv1.Deployment](t, r, "Deployment/phalanx").Spec.Template.Spec
}

func (r rendered) images(t *testing.T) (operator, master string) {
	t.Helper()
	container := r.pod(t).Containers[0]
	for _, flag := range container.Args {
		if value, is := strings.CutPrefix(flag, "--master-image="); is {
			master = value
		}
	}
	return container.Image, master
}

func valuesFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file:" + path
}

func TestImages(t *testing.T) {
	const operator, master = "elasticjob-controller:0.1.0", "dlrover-master:0.1.0"
	cases := map[string]struct {
		set              []string
		operator, master string
	}{
		"nothing said":      {nil, operator, master},
		"a name":            {[]string{"controller.image=mine", "dlroverMaster.image=m"}, "mine:0.1.0", "m:0.1.0"},
		"a name with a tag": {[]string{"controller.image=mine:7"}, "mine:7", master},
		"a digest":          {[]string{"controller.image=mine@sha256:12"}, "mine@sha256:12", master},
		"a tag": {
			[]string{"controller.image.tag=v1", "dlroverMaster.image.tag=v2"},
			"elasticjob-controller:v1", "dlrover-master:v2",
		},
		"a tag of digits":   {[]string{"dlroverMaster.image.tag=2"}, operator, "dlrover-master:2"},
		"name and tag":      {[]string{"controller.image.name=mine", "controller.image.tag=v1"}, "mine:v1", master},
		"a tag in one word": {[]string{"controller.image=mine", `controller.image\.tag=v1`}, "mine:v1", master},
		"the chart of before": {
			[]string{valuesFile(t, "controller: {image: {name: mine, tag: v0.7.0}}\nrbacProxy: {image: {tag: v0.13.1}}\n")},
			"mine:v0.7.0", master,
		},
		"a registry": {[]string{"registry=r.io/p"}, "r.io/p/" + operator, "r.io/p/" + master},
		"a registry with a slash": {
			[]string{"registry=r.io:5000/p/", "controller.image=lib/mine:7"}, "r.io:5000/p/lib/mine:7", "r.io:5000/p/" + master,
		},
		"hosts of their own": {
			[]string{"registry=r.io/p", "controller.image=localhost/a:1", "dlroverMaster.image=b:5000/c:2"},
			"localhost/a:1", "b:5000/c:2",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			operator, master := mustRender(t, tc.set...).images(t)
			if operator != tc.operator || master != tc.master {
				t.Errorf("got %s and %s, want %s and %s", operator, master, tc.operator, tc.master)
			}
		})
	}
}

func TestWrongValues(t *testing.T) {
	cases := map[string]struct {
		set  []string
		want string
	}{
		"an unknown option": {[]string{"regsitry=r.io"}, "additional properties 'regsitry' not allowed"},
		"an unknown part": {
			[]string{"controller.image.repository=x"},
			"at '/controller/image': additional properties 'repository' not allowed",
		},
		"a wrong kind": {
			[]string{"controller.replicas=two"},
			"at '/controller/replicas': got string, want integer",
		},
		"a scheme": {
			[]string{"registry=https://r.io"},
			`registry: "https://r.io"; expected a host and a path`,
		},
		"two tags": {
			[]string{"controller.image.name=a:1", "controller.image.tag=2"},
			`controller.image.tag is "2", and the name "a:1" has a tag`,
		},
		"two tags, one in one word": {
			[]string{"controller.image.tag=1", `controller.image\.tag=2`},
			"controller.image: it has a tag, and so has controller.image.tag",
		},
		"image and tag at a time": {
			[]string{"controller.image=a,controller.image.tag=1"},
			"failed parsing --set data",
		},
		"a number": {
			[]string{valuesFile(t, "controller: {image: {tag: 1.10}}")},
			"controller.image.tag: 1.1 is a number, of which YAML drops zeros",
		},
		"an option in one word": {
			[]string{valuesFile(t, "controller.image.tag: v1")},
			`"controller.image.tag" is one word here`,
		},
		"no image": {[]string{"dlroverMaster.image=a b"}, `dlroverMaster.image: "a b" is no image`},
		"a line of the topology": {
			[]string{"topoMapper.topology_config=asw-0 psw-0"},
			`topoMapper.topology_config: line 1: "asw-0 psw-0": expected 3 words, not 2`,
		},
		"the default account": {
			[]string{"serviceAccount.name=default"},
			"the account of all pods that name none",
		},
		"no account": {[]string{"serviceAccount.create=false"}, "serviceAccount.name: empty"},
		"readers without roles": {
			[]string{"rbac.create=false", "metrics.readers[0].namespace=m", "metrics.readers[0].name=prometheus"},
			"metrics.readers: rbac.create is false, and so nobody is given the right to read",
		},
		"default reads metrics": {
			[]string{"metrics.readers[0].namespace=m", "metrics.readers[0].name=default"},
			`metrics.readers: "default" of m`,
		},
		"a time": {
			[]string{"controller.excludedFor=1d"},
			`controller.excludedFor: "1d" is no time; expected one as 24h`,
		},
		"a taint": {
			[]string{"controller.noticeTaints={a b}"},
			"at '/controller/noticeTaints/0'",
		},
		"a flag": {
			[]string{"controller.extraArgs={workers}"},
			`controller.extraArgs: "workers"; expected a flag`,
		},
		"a low port": {[]string{"metrics.port=80"}, "at '/metrics/port': minimum: got 80, want 1,024"},
		"a part of the pods": {
			[]string{"podDisruptionBudget.maxUnavailable=half"},
			`maxUnavailable: "half"; expected a number of pods`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, tc.set...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestTheOperatorsPod(t *testing.T) {
	made := mustRender(t, valuesFile(t, `
registry: r.io/p
imagePullSecrets: [{name: key}, {name: other}]
controller:
  replicas: 3
  nodeSelector: {pool: system}
  tolerations: [{key: dedicated, operator: Exists}]
  affinity: {nodeAffinity: {}}
  priorityClassName: high
  resources: {limits: {cpu: 1}}
  extraArgs: [--zap-devel=false]
  noticeTaints: [spot/soon, other]
  podLabels: {team: training}
metrics: {certSecret: cert}
launcher: {inject: true}
`))
	deployment := read[appsv1.Deployment](t, made, "Deployment/phalanx")
	pod := made.pod(t)
	container := pod.Containers[0]
	yes, no, user := true, false, int64(65532)
	want := &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	wantContainer := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if diff := cmp.Diff(want, pod.SecurityContext) + cmp.Diff(wantContainer, container.SecurityContext); diff != "" {
		t.Errorf("security (-want +got):\n%s", diff)
	}
	checks := map[string]bool{
		"replicas":         *deployment.Spec.Replicas == 3,
		"nodeSelector":     pod.NodeSelector["pool"] == "system",
		"tolerations":      len(pod.Tolerations) == 1 && pod.Tolerations[0].Key == "dedicated",
		"affinity":         pod.Affinity.NodeAffinity != nil && pod.Affinity.PodAntiAffinity == nil,
		"priority":         pod.PriorityClassName == "high",
		"pull secrets":     len(pod.ImagePullSecrets) == 2 && pod.ImagePullSecrets[0].Name == "key",
		"masters' secrets": slices.Contains(container.Args, "--image-pull-secrets=key,other"),
		"launcher":         slices.Contains(container.Args, "--launcher-image=r.io/p/phalanx-launcher:0.1.0"),
		"limits":           container.Resources.Limits.Cpu().String() == "1",
		"extra flag":       slices.Contains(container.Args, "--zap-devel=false"),
		"taints":           !slices.Contains(container.Args, "--allow-node-taints"),
		"notices":          slices.Contains(container.Args, "--notice-taints=spot/soon,other"),
		"leader election":  slices.Contains(container.Args, "--leader-elect"),
		"certificate": slices.Contains(container.Args, "--metrics-cert-dir=/etc/phalanx/metrics-cert") &&
			pod.Volumes[0].Secret.SecretName == "cert",
		"probes": container.LivenessProbe.HTTPGet.Path == "/healthz" && container.ReadinessProbe.HTTPGet.Path == "/readyz",
		"labels": deployment.Spec.Template.Labels["team"] == "training",
	}
	for name, is := range checks {
		if !is {
			t.Errorf("%s is not as it was set: %s", name, made["Deployment/phalanx"])
		}
	}
	for key, value := range deployment.Spec.Selector.MatchLabels {
		if deployment.Spec.Template.Labels[key] != value {
			t.Errorf("the selector's %s=%s is not on the pods", key, value)
		}
	}
}

// The rights are those of the sources, of one account.
func TestRights(t *testing.T) {
	made := mustRender(t, "metrics.readers[0].namespace=monitoring", "metrics.readers[0].name=prometheus")
	data, err := os.ReadFile("../../config/rbac/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(strings.TrimPrefix(string(data), "---\n"), "\n---\n")
	var cluster rbacv1.ClusterRole
	var role rbacv1.Role
	for i, into := range []any{&cluster, &role} {
		if err := yaml.Unmarshal([]byte(documents[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	diff := cmp.Diff(cluster.Rules, read[rbacv1.ClusterRole](t, made, "ClusterRole/phalanx").Rules) +
		cmp.Diff(role.Rules, read[rbacv1.Role](t, made, "Role/phalanx").Rules)
	if len(documents) != 2 || diff != "" {
		t.Errorf("%d roles (-sources +chart):\n%s", len(documents), diff)
	}
	subjects := map[string]string{}
	for key, text := range made {
		if !strings.Contains(key, "Binding/") {
			continue
		}
		var binding rbacv1.ClusterRoleBinding // as a RoleBinding, for what is looked at
		if err := yaml.Unmarshal(text, &binding); err != nil {
			t.Fatal(err)
		}
		for _, subject := range binding.Subjects {
			subjects[key] += fmt.Sprintf("%s %s/%s to %s;", subject.Kind, subject.Namespace, subject.Name, binding.RoleRef.Name)
		}
	}
	want := map[string]string{
		"ClusterRoleBinding/phalanx":         "ServiceAccount dlrover/phalanx to phalanx;",
		"RoleBinding/phalanx":                "ServiceAccount dlrover/phalanx to phalanx;",
		"ClusterRoleBinding/phalanx-metrics": "ServiceAccount monitoring/prometheus to phalanx-metrics;",
	}
	if diff := cmp.Diff(want, subjects); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
}

func TestProtection(t *testing.T) {
	policy := read[networkingv1.NetworkPolicy](t, mustRender(t), "NetworkPolicy/phalanx").Spec
	if len(policy.Ingress) != 1 || policy.Ingress[0].Ports[0].Port.StrVal != "metrics" || policy.Ingress[0].From != nil {
		t.Errorf("with metrics: %+v", policy.Ingress)
	}
	made := mustRender(t, "metrics.enabled=false", "podDisruptionBudget.maxUnavailable=50%")
	policy = read[networkingv1.NetworkPolicy](t, made, "NetworkPolicy/phalanx").Spec
	if len(policy.Ingress) != 0 || !slices.Equal(policy.PolicyTypes, []networkingv1.PolicyType{"Ingress"}) {
		t.Errorf("without metrics: %+v", policy)
	}
	budget := read[policyv1.PodDisruptionBudget](t, made, "PodDisruptionBudget/phalanx").Spec
	if budget.MaxUnavailable.StrVal != "50%" {
		t.Errorf("budget %v", budget.MaxUnavailable)
	}
	for _, key := range []string{"Service/phalanx-metrics", "ClusterRole/phalanx-metrics"} {
		if made[key] != nil {
			t.Errorf("%s is there without metrics", key)
		}
	}
	from := mustRender(t, "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring")
	policy = read[networkingv1.NetworkPolicy](t, from, "NetworkPolicy/phalanx").Spec
	if got := policy.Ingress[0].From; len(got) != 1 || got[0].NamespaceSelector.MatchLabels["name"] != "monitoring" {
		t.Errorf("from %v", got)
	}
}

func TestDefinitions(t *testing.T) {
	for _, name := range []string{"elasticjobs.elastic.iml.github.io", "scaleplans.elastic.iml.github.io"} {
		key := "CustomResourceDefinition/" + name
		const policy = "helm.sh/resource-policy"
		if got := read[apiextensionsv1.CustomResourceDefinition](t, mustRender(t), key).Annotations[policy]; got != "keep" {
			t.Errorf("%s: %q", key, got)
		}
		leave := read[apiextensionsv1.CustomResourceDefinition](t, mustRender(t, "crds.keep=false"), key)
		if _, there := leave.Annotations[policy]; there {
			t.Errorf("%s is kept", key)
		}
		if mustRender(t, "crds.install=false")[key] != nil {
			t.Errorf("%s is there", key)
		}
	}
}

func TestTopologyConfig(t *testing.T) {
	const key = "ConfigMap/node-topology-config"
	if got := read[corev1.ConfigMap](t, mustRender(t), key).Data; got != nil {
		t.Errorf("without lines: %v", got)
	}
	lines := "# asw psw ip\nasw-0 psw-0 192.168.0.0\nasw-1,psw-0,fd00::1\n"
	indented := strings.ReplaceAll(strings.TrimSpace(lines), "\n", "\n    ")
	file := valuesFile(t, "topoMapper:\n  topology_config: |\n    "+indented+"\n")
	if got := read[corev1.ConfigMap](t, mustRender(t, file), key).Data["topology_config"]; got != lines {
		t.Errorf("got %q, want %q", got, lines)
	}
}

func TestNames(t *testing.T) {
	made := mustRender(t, "fullnameOverride=training", "serviceAccount.name=mine", "rbac.create=false",
		"rbac.aggregate=false")
	if read[appsv1.Deployment](t, made, "Deployment/training").Spec.Template.Spec.ServiceAccountName != "mine" {
		t.Error("the account is another")
	}
	for key := range made {
		if strings.Contains(key, "Role") {
			t.Errorf("%s is there without rbac.create", key)
		}
	}
}

func TestOldClustersAreRefused(t *testing.T) {
	_, err := helm(t.Context(), "template", "phalanx", chartFolder, "--kube-version", "1.28.9")
	if err == nil || !strings.Contains(err.Error(), "chart requires kubeVersion: >=1.29.0-0") {
		t.Errorf("got %v", err)
	}
}

func TestLint(t *testing.T) {
	if output, err := helm(t.Context(), "lint", "--strict", chartFolder); err != nil {
		t.Errorf("%v%s", err, output)
	}
}
