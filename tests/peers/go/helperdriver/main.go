// Command helperdriver is a small DRA driver on the helper that most drivers in the field stand on,
// k8s.io/dynamic-resource-allocation/kubeletplugin.
//
// Its devices are made up, the rest is what such a driver does: it registers, publishes its devices,
// reads each claim from the API server, writes CDI specs and keeps a checkpoint that all its instances
// share.  Faults can be injected by a file, and a ledger tells what it was asked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// settings are the flags.
type settings struct {
	driverName, nodeName, kubeconfig         string
	registrarDir, pluginsDir, cdiRoot        string
	podUID, faults, ledger                   string
	deviceCount                              int
	qps                                      float64
	burst                                    int
	apiV1, apiV1beta1, serialize, publishing bool
}

func parse() settings {
	var s settings
	flag.StringVar(&s.driverName, "driver-name", "helper.example.com", "name of the driver")
	flag.StringVar(&s.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of the node, also of the pool")
	flag.StringVar(&s.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the API server")
	flag.StringVar(&s.registrarDir, "registrar-dir", "", "directory of registration sockets, must exist")
	flag.StringVar(&s.pluginsDir, "plugins-dir", "", "directory of plugin data directories")
	flag.StringVar(&s.cdiRoot, "cdi-root", "", "directory for CDI specs")
	flag.StringVar(&s.podUID, "pod-uid", "", "turns rolling updates on")
	flag.StringVar(&s.faults, "faults", "", "JSON file with faults, read at each call; may be missing")
	flag.StringVar(&s.ledger, "ledger", "", "file that gets one JSON line for each call")
	flag.IntVar(&s.deviceCount, "devices", 8, "number of devices: dev-0, dev-1, ...")
	flag.Float64Var(&s.qps, "kube-api-qps", 5, "as drivers in the field have it")
	flag.IntVar(&s.burst, "kube-api-burst", 10, "as drivers in the field have it")
	flag.BoolVar(&s.apiV1, "api-v1", true, "serve v1.DRAPlugin")
	flag.BoolVar(&s.apiV1beta1, "api-v1beta1", true, "serve v1beta1.DRAPlugin")
	flag.BoolVar(&s.serialize, "serialize", true, "one call at a time")
	flag.BoolVar(&s.publishing, "publish", true, "publish a ResourceSlice")
	klog.InitFlags(nil)
	flag.Parse()
	return s
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, stop, parse()); err != nil {
		klog.ErrorS(err, "The driver failed")
		os.Exit(1)
	}
}

func run(ctx context.Context, stop context.CancelFunc, s settings) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst = float32(s.qps), s.burst
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	dataDir := filepath.Join(s.pluginsDir, s.driverName)
	if err := os.MkdirAll(dataDir, 0o750); err != nil {
		return err
	}
	if err := os.MkdirAll(s.cdiRoot, 0o750); err != nil {
		return err
	}
	d, err := newDriver(s, dataDir, stop)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(s.driverName),
		kubeletplugin.NodeName(s.nodeName),
		kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(s.registrarDir),
		kubeletplugin.PluginDataDirectoryPath(dataDir),
		kubeletplugin.RollingUpdate(types.UID(s.podUID)),
		kubeletplugin.NodeV1(s.apiV1),
		kubeletplugin.NodeV1beta1(s.apiV1beta1),
		kubeletplugin.Serialize(s.serialize),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return fmt.Errorf("start helper: %w", err)
	}
	defer helper.Stop()
	if s.publishing {
		if err := helper.PublishResources(ctx, resources(s)); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	klog.InfoS("Ready")
	<-ctx.Done()
	return context.Cause(d.failed)
}

// resources describes all devices in one pool of the node's name.
func resources(s settings) resourceslice.DriverResources {
	slice := resourceslice.Slice{}
	for i := range s.deviceCount {
		model := "made-up"
		slice.Devices = append(slice.Devices, resourceapi.Device{
			Name: deviceName(i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"model": {StringValue: &model},
			},
		})
	}
	pools := map[string]resourceslice.Pool{s.nodeName: {Slices: []resourceslice.Slice{slice}}}
	return resourceslice.DriverResources{Pools: pools}
}

func deviceName(index int) string { return fmt.Sprintf("dev-%d", index) }

// HandleError stops the driver on what cannot be recovered from, as the helper asks for.
func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fail(fmt.Errorf("%s: %w", msg, err))
		d.stop()
	}
}

// WatchHealthStatus is never called, since the health service is off.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
