// Stand-in for libcuda.so.1: PyTorch links to it and looks functions up in it.  Each one is passed on
// to fakecuda.c, which answers "not supported" for those that the allocator does not need.
extern void *fake_driver_function(const char *name);

typedef int (*Driver)(void *, void *, void *, void *, void *, void *);

#define PASS_ON(name)                                                          \
  int name(void *a, void *b, void *c, void *d, void *e, void *f) {             \
    return ((Driver)fake_driver_function(#name))(a, b, c, d, e, f);            \
  }

PASS_ON(cuCtxGetCurrent)
PASS_ON(cuCtxPopCurrent)
PASS_ON(cuCtxPushCurrent)
PASS_ON(cuCtxSetCurrent)
PASS_ON(cuDeviceGet)
PASS_ON(cuDeviceGetAttribute)
PASS_ON(cuDevicePrimaryCtxGetState)
PASS_ON(cuDevicePrimaryCtxRetain)
PASS_ON(cuFuncGetAttribute)
PASS_ON(cuFuncSetAttribute)
PASS_ON(cuFuncSetCacheConfig)
PASS_ON(cuGetErrorString)
PASS_ON(cuLaunchCooperativeKernel)
PASS_ON(cuLaunchKernel)
PASS_ON(cuLinkAddData_v2)
PASS_ON(cuLinkComplete)
PASS_ON(cuLinkCreate_v2)
PASS_ON(cuMemAddressFree)
PASS_ON(cuMemAddressReserve)
PASS_ON(cuMemCreate)
PASS_ON(cuMemExportToShareableHandle)
PASS_ON(cuMemGetAllocationGranularity)
PASS_ON(cuMemGetAllocationPropertiesFromHandle)
PASS_ON(cuMemImportFromShareableHandle)
PASS_ON(cuMemMap)
PASS_ON(cuMemRelease)
PASS_ON(cuMemRetainAllocationHandle)
PASS_ON(cuMemSetAccess)
PASS_ON(cuMemUnmap)
PASS_ON(cuMemsetD32Async)
PASS_ON(cuModuleGetFunction)
PASS_ON(cuModuleLoad)
PASS_ON(cuModuleLoadData)
PASS_ON(cuModuleLoadDataEx)
PASS_ON(cuModuleUnload)
PASS_ON(cuMulticastAddDevice)
PASS_ON(cuMulticastBindMem)
PASS_ON(cuMulticastCreate)
PASS_ON(cuMulticastUnbind)
PASS_ON(cuOccupancyMaxActiveBlocksPerMultiprocessor)
PASS_ON(cuPointerGetAttribute)
PASS_ON(cuStreamWriteValue32)
PASS_ON(cuStreamWriteValue32_v2)
PASS_ON(cuTensorMapEncodeTiled)

// Stand-in for libnvidia-ml.so.1 (build.py links that name here): from 2.13 on, c10 calls it when it maps its
// first expandable page, and crashes when it is missing.  Success, and nothing to report.
#define SUCCEED(name) int name(void) { return 0; }

SUCCEED(nvmlInit_v2)
SUCCEED(nvmlDeviceGetHandleByPciBusId_v2)
SUCCEED(nvmlDeviceGetComputeRunningProcesses)
SUCCEED(nvmlDeviceGetNvLinkRemoteDeviceType)
SUCCEED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
SUCCEED(nvmlSystemGetCudaDriverVersion_v2)
SUCCEED(nvmlDeviceGetGpuFabricInfoV)
