// Command manager is Phalanx's Kubernetes operator: it carries out ElasticJobs and ScalePlans.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"phalanx/operator/internal/controller"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/gang/keeper"
	"phalanx/operator/internal/link"
	"phalanx/operator/internal/manager"
	"phalanx/operator/internal/nodetaint"
	"phalanx/operator/internal/topology/live"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "phalanx-operator:", err)
		os.Exit(1)
	}
}

// version is Phalanx's.
const version = "0.1.0"

// collectOften lets the heap grow by two fifths, not to twice what lives, before it is collected: what lives are the
// caches, and an operator that waits has processor time to spare. Who has set GOGC knows better.
func collectOften() {
	if _, given := os.LookupEnv("GOGC"); !given {
		debug.SetGCPercent(40)
	}
}

func run() error {
	var options manager.Options
	settings := controller.Settings{
		Policy: engine.DefaultPolicy(), Self: link.Self{Version: version}, NoticeTaints: elasticjob.NoticeTaints(),
	}
	options.Declare(flag.CommandLine)
	flag.StringVar(&settings.Options.MasterImage, "master-image", "phalanx-master:latest",
		"image with phalanx-master, for jobs that bring no dlrover-master of their own")
	flag.Func("master-pod",
		"nodeSelector, tolerations, resources and imagePullPolicy of that image's pods, as JSON",
		func(text string) (err error) {
			settings.Options.MasterPod, err = elasticjob.ParseMasterPod(text)
			return err
		})
	flag.StringVar(&settings.Options.LauncherImage, "launcher-image", "",
		"image that copies phalanx-run into workers, at /phalanx; empty: their own images have it")
	flag.Func("image-pull-secrets",
		"names of secrets for these two images, separated by commas; each is looked for in the namespace of the job",
		func(names string) error {
			settings.Options.PullSecrets = strings.Split(names, ",")
			return nil
		})
	flag.Int64Var(&settings.Options.NodeLostAfter, "node-lost-after", 30,
		"seconds that a pod stays on a node that does not answer, where its template does not say")
	flag.DurationVar(&settings.Policy.ForceDeleteAfter, "node-lost-force-delete-after", 0,
		"how long past its grace a pod that leaves a node that is not ready stays before it is removed; 0: for ever")
	flag.DurationVar(&settings.Policy.ExcludedFor, "excluded-for", settings.Policy.ExcludedFor,
		"how long a job avoids a node that an exit code of its pods has blamed")
	flag.DurationVar(&settings.Policy.BlockedFor, "start-blocked-for", settings.Policy.BlockedFor,
		"how long a job waits for pods that cannot start, as with a wrong image, while none of them runs")
	flag.Func("notice-taints",
		"keys of taints, separated by commas, by which somebody says that a node is about to go; empty: none is heeded "+
			"(default "+strings.Join(settings.NoticeTaints, ",")+")",
		func(keys string) error {
			settings.NoticeTaints = strings.FieldsFunc(keys, func(r rune) bool { return r == ',' })
			return nil
		})
	taints := flag.Bool("allow-node-taints", false,
		"taint a node that a job avoids as bad, for as long as that job does, so that no job gets it")
	flag.IntVar(&settings.Workers, "workers", 8, "jobs that are worked on at a time")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("%q: expected flags only", flag.Arg(0))
	}
	if settings.Workers < 1 {
		return fmt.Errorf("--workers=%d: expected 1 or more", settings.Workers)
	}
	ctrl.SetLogger(zap.New())
	collectOften()
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	ctx := ctrl.SetupSignalHandler()
	built, err := manager.New(config, options)
	if err != nil {
		return err
	}
	settings.Self.Turn = manager.Turn(built.GetAPIReader(), options)
	if err := keeper.Setup(built, settings.Workers); err != nil {
		return err
	}
	if options.TopologyNamespace != "" {
		switches, err := live.Setup(built, settings.Workers)
		if err != nil {
			return err
		}
		settings.Switches = switches
	}
	if *taints {
		if err := nodetaint.Setup(ctx, built); err != nil {
			return err
		}
	}
	if err := controller.Setup(ctx, built, settings); err != nil {
		return err
	}
	return built.Start(ctx)
}
