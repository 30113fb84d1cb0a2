//go:build apiserver

package chart

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/test/ports"
)

// patience is how long a test waits for what must come.
const patience = 3 * time.Minute

// home is the release's namespace. Releases come one after another: what they install is the cluster's.
const home = "dlrover"

// release is the chart, installed, and the operator as it would run there.
type release struct {
	t           *testing.T
	metricsPort int
	healthPort  int
	output      *output // of the operator that began last
}

func install(t *testing.T, set ...string) *release {
	t.Helper()
	r := &release{t: t, metricsPort: ports.Free(t), healthPort: ports.Free(t)}
	arguments := []string{"install", "phalanx", cluster.chart, "--namespace", home, "--create-namespace",
		"--set", fmt.Sprintf("registry=r.io/p,metrics.port=%d", r.metricsPort)}
	for _, one := range set {
		arguments = append(arguments, "--set", one)
	}
	if _, err := helm(t.Context(), arguments...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := helm(context.Background(), "uninstall", "phalanx", "--namespace", home, "--ignore-not-found")
		if err != nil {
			t.Error(err)
		}
	})
	awaitServed(t, "elasticjobs.elastic.iml.github.io")
	return r
}

// awaitServed: an API server takes a moment between a definition and its objects.
func awaitServed(t *testing.T, name string) {
	t.Helper()
	await(t, &apiextensionsv1.CustomResourceDefinitionList{}, "", func(list client.ObjectList) error {
		definitions := list.(*apiextensionsv1.CustomResourceDefinitionList).Items
		for i := range definitions {
			if definitions[i].Name != name {
				continue
			}
			for _, condition := range definitions[i].Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return nil
				}
			}
		}
		return fmt.Errorf("%s is not served", name)
	})
}

// operate runs the operator with the account and the flags that the Deployment has, and others behind them. What it
// returns ends it.
func (r *release) operate(others ...string) func() {
	r.t.Helper()
	var deployment appsv1.Deployment
	get(r.t, &deployment, home, "phalanx")
	pod := deployment.Spec.Template.Spec
	arguments := append(pod.Containers[0].Args, "--kubeconfig="+r.kubeconfig(pod.ServiceAccountName),
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", r.healthPort))
	arguments = append(arguments, others...)
	output := &output{serves: make(chan struct{})}
	r.output = output
	command := exec.Command(cluster.program, arguments...)
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		r.t.Fatal(err)
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			if err := command.Process.Signal(syscall.SIGTERM); err != nil { // it gives its lease up
				r.t.Error(err)
			}
			if err := command.Wait(); err != nil {
				r.t.Errorf("the operator's end: %v", err)
			}
			if text := output.text.String(); r.t.Failed() { // whole once Wait has returned
				r.t.Logf("the operator, %v:\n%s", arguments, text[max(0, len(text)-8000):])
			}
		})
	}
	r.t.Cleanup(end)
	return end
}

// output is what an operator writes. It serves metrics once its key is made, which it works without.
type output struct {
	text   bytes.Buffer // written by the goroutine of exec alone
	serves chan struct{}
	once   sync.Once
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.text.Write(text)
	if bytes.Contains(o.text.Bytes(), []byte("Serving metrics server")) {
		o.once.Do(func() { close(o.serves) })
	}
	return n, err
}

func token(t *testing.T, namespace, account string) string {
	t.Helper()
	asked := &authenticationv1.TokenRequest{}
	var found corev1.ServiceAccount
	get(t, &found, namespace, account)
	if err := cluster.client.SubResource("token").Create(t.Context(), &found, asked); err != nil {
		t.Fatal(err)
	}
	return asked.Status.Token
}

func (r *release) kubeconfig(account string) string {
	r.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: cluster.admin.Host, CertificateAuthorityData: cluster.admin.CAData,
	}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token(r.t, home, account)}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(r.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func get(t *testing.T, object client.Object, namespace, name string) {
	t.Helper()
	if err := cluster.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, object); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := cluster.client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

func patch(t *testing.T, object client.Object, change string) {
	t.Helper()
	raw := client.RawPatch(types.MergePatchType, []byte(change))
	if err := cluster.client.Patch(t.Context(), object, raw); err != nil {
		t.Fatal(err)
	}
}

func namespace(t *testing.T) string {
	t.Helper()
	made := &corev1.Namespace{}
	made.GenerateName = "test-"
	create(t, made)
	return made.Name
}

// await waits until is returns nil for what there is of a kind in a namespace. It looks when something of it changes.
func await(t *testing.T, list client.ObjectList, namespace string, is func(client.ObjectList) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if err := cluster.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		err := is(list)
		if err == nil {
			return
		}
		changes, watchErr := cluster.client.Watch(ctx, list, client.InNamespace(namespace),
			&client.ListOptions{Raw: since(list)})
		if watchErr != nil {
			t.Fatal(watchErr)
		}
		heard := next(ctx, changes)
		changes.Stop()
		if !heard {
			t.Fatalf("after %v: %v", patience, err)
		}
	}
}

// next says whether something has happened before the time is over.
func next(ctx context.Context, changes watch.Interface) bool {
	select {
	case <-changes.ResultChan():
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// jobOf is a job of so many workers.
func jobOf(namespace, name string, replicas int32) *v1alpha1.ElasticJob {
	worker := &v1alpha1.ReplicaSpec{Replicas: &replicas}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "training"}}
	job := &v1alpha1.ElasticJob{}
	job.Name, job.Namespace = name, namespace
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	return job
}

// awaitPod waits for a pod that is as it should be.
func awaitPod(t *testing.T, namespace, name string, is func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	await(t, &corev1.PodList{}, namespace, func(list client.ObjectList) error {
		pods := list.(*corev1.PodList).Items
		for i := range pods {
			if pods[i].Name == name {
				found = &pods[i]
				return is(found)
			}
		}
		var names []string
		for i := range pods {
			names = append(names, pods[i].Name)
		}
		return fmt.Errorf("there is no pod %s; there are %s", name, strings.Join(names, ", "))
	})
	return found
}

func isThere(*corev1.Pod) error { return nil }

func since(list client.ObjectList) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}
}
