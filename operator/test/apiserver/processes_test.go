//go:build apiserver

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// processes is a scheduler, a kubelet, a cluster DNS and a proxy of services in one: it runs what pods of a stage ask
// for as processes of this machine. A pod has a loopback address, a host name, a hosts file in which its job's service
// stands, and the folders that its volumes give it; images are not looked at. It needs root.
type processes struct {
	t      *testing.T
	s      *stage
	folder string
	hosts  string // the file
	path   string // $PATH of all pods

	mu      sync.Mutex
	started map[types.UID]*process
	next    int
	proxies map[string]*proxy // by service
}

// process is a pod's.
type process struct {
	command *exec.Cmd
	address string
	ended   chan struct{}
	doomed  sync.Once
}

const nodesOfProcesses = 8

func startProcesses(s *stage, path string) *processes {
	s.t.Helper()
	if os.Geteuid() != 0 {
		s.t.Fatal("pods are run in mount and host name namespaces: expected root")
	}
	addNodes(s.t, nodesOfProcesses)
	folder := s.t.TempDir()
	p := &processes{
		t: s.t, s: s, folder: folder, hosts: filepath.Join(folder, "hosts"), path: path,
		started: map[types.UID]*process{}, proxies: map[string]*proxy{},
	}
	own, err := os.ReadFile("/etc/hosts")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(p.hosts, own, 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.killAll)
	s.listen(&corev1.Pod{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.tend(object) },
		UpdateFunc: func(_, object any) { p.tend(object) },
		DeleteFunc: func(object any) { p.forget(object) },
	})
	return p
}

// serve gives a service an address, by which processes that see the hosts file find the pod that it selects.
func (p *processes) serve(service string, port int) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	address := fmt.Sprintf("127.78.%d.%d", os.Getpid()%200+1, len(p.proxies)+1)
	listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address, port))
	if err != nil {
		p.t.Fatal(err)
	}
	made := &proxy{port: port}
	p.proxies[service] = made
	file, err := os.OpenFile(p.hosts, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%s %s.%s.svc\n", address, service, p.s.namespace); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { listener.Close() })
	go made.run(listener)
}

func (p *processes) tend(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	pod = pod.DeepCopy()
	p.mu.Lock()
	running := p.started[pod.UID]
	if running == nil && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodPending {
		running = p.start(pod)
	}
	p.mu.Unlock()
	switch {
	case pod.DeletionTimestamp != nil:
		go p.end(pod, running)
	case pod.Spec.NodeName == "":
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: nodeFor(pod, nodesOfProcesses)}}
		p.check(cluster.client.SubResource("binding").Create(p.s.t.Context(), pod, binding), pod)
	}
}

func (p *processes) check(err error, pod *corev1.Pod) {
	if err != nil && p.t.Context().Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		p.t.Logf("kubelet: %s: %v", pod.Name, err)
	}
}

// start begins a pod's process and says that it runs. The lock is held.
func (p *processes) start(pod *corev1.Pod) *process {
	p.next++
	address := fmt.Sprintf("127.77.%d.%d", os.Getpid()%200+1, p.next)
	folder := filepath.Join(p.folder, pod.Name)
	env, err := p.environment(pod, address, folder)
	if err != nil {
		p.t.Errorf("kubelet: %s: %v", pod.Name, err)
		return nil
	}
	command, err := p.command(pod, env, folder)
	if err != nil {
		p.t.Errorf("kubelet: %s: %v", pod.Name, err)
		return nil
	}
	if err := command.Start(); err != nil {
		p.t.Errorf("kubelet: %s: %v", pod.Name, err)
		return nil
	}
	made := &process{command: command, address: address, ended: make(chan struct{})}
	p.started[pod.UID] = made
	for service, proxy := range p.proxies {
		if strings.HasPrefix(pod.Name, service+"-") { // the master's pods have their service's name, and a number
			proxy.lead(address)
		}
	}
	go p.report(pod, made)
	return made
}

// environment is the main container's, with what its variables refer to.
func (p *processes) environment(pod *corev1.Pod, address, folder string) ([]string, error) {
	values := map[string]string{}
	env := []string{"PATH=" + p.path, "HOME=" + folder, "LANG=C.UTF-8"}
	for _, variable := range pod.Spec.Containers[0].Env {
		value := variable.Value
		if from := variable.ValueFrom; from != nil && from.FieldRef != nil {
			value = map[string]string{
				"metadata.name": pod.Name, "status.podIP": address, "status.hostIP": "127.0.0.1",
			}[from.FieldRef.FieldPath]
		} else if from != nil && from.SecretKeyRef != nil {
			secret := &corev1.Secret{}
			key := client.ObjectKey{Namespace: pod.Namespace, Name: from.SecretKeyRef.Name}
			if err := cluster.client.Get(p.t.Context(), key, secret); err != nil {
				return nil, err
			}
			value = string(secret.Data[from.SecretKeyRef.Key])
		}
		values[variable.Name] = expand(value, values)
		env = append(env, variable.Name+"="+values[variable.Name])
	}
	return env, nil
}

// expand replaces $(NAME) as Kubernetes does.
func expand(text string, values map[string]string) string {
	for name, value := range values {
		text = strings.ReplaceAll(text, "$("+name+")", value)
	}
	return text
}

// inPod runs its arguments, but the first ones, in namespaces of their own: its host name, the hosts file, and pairs of
// folders of which the first is seen at the second.
const inPod = `set -e; hostname "$1"; mount --bind "$2" /etc/hosts; shift 2
while [ "$1" != -- ]; do mkdir -p "$1" "$2"; mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"`

func (p *processes) command(pod *corev1.Pod, env []string, folder string) (*exec.Cmd, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, one := range env {
		name, value, _ := strings.Cut(one, "=")
		values[name] = value
	}
	arguments := []string{"--mount", "--uts", "/bin/sh", "-c", inPod, "pod", pod.Name, p.hosts}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		arguments = append(arguments, filepath.Join(folder, "volume-"+mount.Name), mount.MountPath)
	}
	arguments = append(arguments, "--")
	for _, word := range append(pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args...) {
		arguments = append(arguments, expand(word, values))
	}
	command := exec.Command("unshare", arguments...)
	command.Env, command.Dir = env, folder
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(p.folder, pod.Name+".log"))
	if err != nil {
		return nil, err
	}
	command.Stdout, command.Stderr = log, log
	return command, nil
}

// report writes that the process runs, and how it ended.
func (p *processes) report(pod *corev1.Pod, made *process) {
	status := running(pod)
	status.PodIP = made.address
	p.write(pod, status)
	err := made.command.Wait()
	close(made.ended)
	code := int32(0)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = int32(exit.ExitCode())
		if wait, ok := exit.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
			code = 128 + int32(wait.Signal())
		}
	}
	p.write(pod, ended(status, code))
}

// ended is the status of a pod whose containers have exited.
func ended(status corev1.PodStatus, code int32) corev1.PodStatus {
	after := *status.DeepCopy()
	after.Phase, after.Conditions = corev1.PodFailed, nil
	if code == 0 {
		after.Phase = corev1.PodSucceeded
	}
	for i := range after.ContainerStatuses {
		after.ContainerStatuses[i].Ready = false
		after.ContainerStatuses[i].State = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", FinishedAt: metav1.Now()},
		}
	}
	return after
}

// write gives a pod a status, whatever else has changed of it.
func (p *processes) write(pod *corev1.Pod, status corev1.PodStatus) {
	for p.t.Context().Err() == nil {
		now := &corev1.Pod{}
		err := cluster.client.Get(p.t.Context(), client.ObjectKeyFromObject(pod), now)
		if err != nil || now.UID != pod.UID {
			return
		}
		now.Status = status
		if err = cluster.client.Status().Update(p.t.Context(), now); !apierrors.IsConflict(err) {
			p.check(err, pod)
			return
		}
	}
}

// end gives a process its grace period, kills it, and removes the pod.
func (p *processes) end(pod *corev1.Pod, running *process) {
	if running != nil {
		first := false
		running.doomed.Do(func() { first = true })
		if !first {
			return
		}
		running.signal(syscall.SIGTERM)
		grace := time.NewTimer(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
		select {
		case <-running.ended:
		case <-grace.C:
		}
		grace.Stop()
		running.kill()
	}
	err := cluster.client.Delete(context.Background(), pod, client.GracePeriodSeconds(0),
		client.Preconditions{UID: &pod.UID})
	p.check(err, pod)
}

// forget is for pods that are gone at once, without a grace period.
func (p *processes) forget(object any) {
	if pod, ok := object.(*corev1.Pod); ok {
		p.mu.Lock()
		running := p.started[pod.UID]
		p.mu.Unlock()
		if running != nil {
			running.kill()
		}
	}
}

// of is the process of a pod.
func (p *processes) of(pod corev1.Pod) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started[pod.UID]
}

func (p *processes) killAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, process := range p.started {
		process.kill()
	}
	if p.t.Failed() {
		p.tellLogs()
	}
}

func (p *processes) tellLogs() {
	logs, _ := filepath.Glob(filepath.Join(p.folder, "*.log"))
	for _, log := range logs {
		if text, err := os.ReadFile(log); err == nil {
			p.t.Logf("%s:\n%s", filepath.Base(log), text[max(0, len(text)-3000):])
		}
	}
}

func (p *process) signal(signal syscall.Signal) { p.command.Process.Signal(signal) } //nolint:errcheck // it may be gone

// kill ends a pod's first process and all of its group at once, as a machine does that is lost.
func (p *process) kill() {
	syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
}

// proxy leads connections to the pod that a service selects now.
type proxy struct {
	port int
	mu   sync.Mutex
	to   string
}

func (x *proxy) lead(address string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.to = address
}

func (x *proxy) run(listener net.Listener) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		go x.carry(from)
	}
}

func (x *proxy) carry(from net.Conn) {
	defer from.Close()
	x.mu.Lock()
	address := net.JoinHostPort(x.to, fmt.Sprint(x.port))
	x.mu.Unlock()
	to, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{to, from}, {from, to}} {
		go func() {
			io.Copy(pair[0], pair[1])           //nolint:errcheck // either end may go
			pair[0].(*net.TCPConn).CloseWrite() //nolint:errcheck // likewise
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}
