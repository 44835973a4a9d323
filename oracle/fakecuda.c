// An emulated GPU.  Loaded with LD_PRELOAD, this library answers the CUDA runtime calls and the
// virtual-memory driver calls that PyTorch's caching allocator makes, so that the real allocator
// runs on a machine without a GPU.  Addresses are only numbers: nothing may read or write them.
//
// Rules of the emulated GPU:
//   cudaMalloc   lowest free 2 MiB-aligned address above ARENA; costs exactly the bytes asked for;
//                fails when FAKE_TOTAL would be exceeded
//   reserve      ever-growing addresses above VIRTUAL; costs nothing, never reused
//   page         costs its size; fails when FAKE_TOTAL would be exceeded
//   event        complete at once, unless held with fake_hold(1)
//
// Environment: FAKE_TOTAL   memory of each device in bytes (8 GiB)
//              FAKE_USED    part of it that other programs hold (0)
//              FAKE_DEVICES number of devices (1)
//              FAKE_LOG=1   print every driver call
// Callable at run time: fake_hold, fake_release.
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA 0x7f0000000000ULL
#define VIRTUAL 0x600000000000ULL
#define ALIGNMENT (2ULL << 20)
#define GIB (1ULL << 30)
#define MAX_DEVICES 64

#define LOG(...) do { if (logging) fprintf(stderr, "[fake] " __VA_ARGS__); } while (0)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t total, used_by_others;
static size_t used[MAX_DEVICES];
static int devices, logging;
static __thread int current_device;

static size_t setting(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

__attribute__((constructor)) static void read_settings(void) {
  total = setting("FAKE_TOTAL", 8 * GIB);
  used_by_others = setting("FAKE_USED", 0);
  devices = setting("FAKE_DEVICES", 1);
  if (devices > MAX_DEVICES) devices = MAX_DEVICES;
  logging = setting("FAKE_LOG", 0);
}

static size_t free_bytes_of(int device) {
  size_t taken = used[device] + used_by_others;
  return total > taken ? total - taken : 0;
}
static int fits(int device, size_t bytes) { return bytes <= free_bytes_of(device); }

static void *grown(void *array, size_t count, size_t *capacity, size_t item) {
  if (count < *capacity) return array;
  *capacity = *capacity ? *capacity * 2 : 1024;
  array = realloc(array, *capacity * item);
  if (!array) abort();
  return array;
}

// ---- memory
typedef struct {
  uint64_t address, size, span;  // span: size rounded up to the alignment
  int device;
} Segment;
static Segment *segments;  // ascending addresses
static size_t segment_count, segment_capacity;

cudaError_t cudaMalloc(void **pointer, size_t size) {
  pthread_mutex_lock(&mutex);
  if (!fits(current_device, size)) {
    pthread_mutex_unlock(&mutex);
    LOG("cudaMalloc(%zu) -> out of memory\n", size);
    *pointer = NULL;
    return cudaErrorMemoryAllocation;
  }
  uint64_t address = ARENA, span = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  size_t at = 0;
  for (; at < segment_count; at++) {
    if (segments[at].address - address >= span) break;
    address = segments[at].address + segments[at].span;
  }
  segments = grown(segments, segment_count, &segment_capacity, sizeof *segments);
  memmove(&segments[at + 1], &segments[at], sizeof *segments * (segment_count - at));
  segments[at] = (Segment){address, size, span, current_device};
  segment_count++;
  used[current_device] += size;
  *pointer = (void *)address;
  pthread_mutex_unlock(&mutex);
  LOG("cudaMalloc(%zu) = arena+%#llx\n", size, (unsigned long long)(address - ARENA));
  return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
  if (!pointer) return cudaSuccess;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < segment_count; i++) {
    if (segments[i].address != (uint64_t)pointer) continue;
    used[segments[i].device] -= segments[i].size;
    LOG("cudaFree(arena+%#llx) %llu bytes\n", (unsigned long long)(segments[i].address - ARENA),
        (unsigned long long)segments[i].size);
    segment_count--;
    memmove(&segments[i], &segments[i + 1], sizeof *segments * (segment_count - i));
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
  }
  pthread_mutex_unlock(&mutex);
  fprintf(stderr, "[fake] cudaFree of an unknown address %p\n", pointer);
  return cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  *total_bytes = total;
  *free_bytes = free_bytes_of(current_device);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
  return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t n) { return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) { return cudaSuccess; }

// ---- devices
cudaError_t cudaGetDeviceCount(int *count) { *count = devices; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = current_device; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "Fake GPU");
  p->totalGlobalMem = total;
  p->major = 9;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 48 << 10;
  p->regsPerMultiprocessor = 64 << 10;
  p->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

// The name that CUDA 12 builds call.  Their struct differs from the one in today's headers; only
// totalGlobalMem matters to the allocator, and it lies 288 bytes from the start in all of them.
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) {
  memset(p, 0, 700);
  *(size_t *)((char *)p + 288) = total;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device) { *value = 1; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

// ---- streams: handles 0x10000100, 0x10000200, ... in order of creation
static uint64_t stream_count;
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  pthread_mutex_lock(&mutex);
  *stream = (cudaStream_t)(0x10000000ULL + 0x100 * ++stream_count);
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }

// ---- events
typedef struct { int complete; unsigned long long recorded; } Event;  // recorded: position in the order of recording
static Event **events;
static size_t event_count, event_capacity;
static unsigned long long recordings;
static int holding;

// fake_hold(1): events recorded from now on stay incomplete.  fake_hold(0): they complete at once again.
void fake_hold(int hold) { holding = hold; }

// Completes the oldest `count` of the events that were held back.
void fake_release(size_t count) {
  for (; count; count--) {
    Event *oldest = NULL;
    for (size_t i = 0; i < event_count; i++)
      if (!events[i]->complete && (!oldest || events[i]->recorded < oldest->recorded)) oldest = events[i];
    if (!oldest) return;
    oldest->complete = 1;
  }
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  Event *created = calloc(1, sizeof *created);
  created->complete = 1;
  pthread_mutex_lock(&mutex);
  events = grown(events, event_count, &event_capacity, sizeof *events);
  events[event_count++] = created;
  pthread_mutex_unlock(&mutex);
  *event = (cudaEvent_t)created;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ((Event *)event)->complete = !holding;
  ((Event *)event)->recorded = recordings++;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return ((Event *)event)->complete ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ((Event *)event)->complete = 1;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) { *ms = 0; return cudaSuccess; }

// ---- graph capture: one capture on one stream at a time
#define GRAPH ((cudaGraph_t)0x1234)
#define GRAPH_EXEC ((cudaGraphExec_t)0x5678)
static cudaStream_t capture_stream;
static int capturing;
static unsigned long long capture_id;

static enum cudaStreamCaptureStatus capture_status(cudaStream_t stream) {
  return capturing && stream == capture_stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = capture_status(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  capturing = 1;
  capture_stream = stream;
  capture_id++;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  capturing = 0;
  *graph = GRAPH;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  *status = capture_status(stream);
  if (id) *id = capture_id;
  if (graph) *graph = GRAPH;
  if (nodes) *nodes = NULL;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                        size_t *count) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  *exec = GRAPH_EXEC;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { return cudaSuccess; }

// ---- virtual memory (driver), used by expandable segments
typedef struct { size_t size; int device; } Page;
static uint64_t next_reservation = VIRTUAL;

static CUresult reserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags) {
  pthread_mutex_lock(&mutex);
  *address = next_reservation;
  next_reservation += (size + GIB) / GIB * GIB + GIB;
  pthread_mutex_unlock(&mutex);
  LOG("cuMemAddressReserve(%zu) = %#llx\n", size, (unsigned long long)*address);
  return CUDA_SUCCESS;
}
static CUresult unreserve(CUdeviceptr address, size_t size) {
  LOG("cuMemAddressFree(%#llx, %zu)\n", (unsigned long long)address, size);
  return CUDA_SUCCESS;
}
static CUresult create_page(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
  if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  int device = prop->location.id;
  if (device < 0 || device >= devices) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&mutex);
  int ok = fits(device, size);
  if (ok) used[device] += size;
  pthread_mutex_unlock(&mutex);
  if (!ok) {
    LOG("cuMemCreate(%zu) -> out of memory\n", size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Page *page = malloc(sizeof *page);
  *page = (Page){size, device};
  *handle = (uintptr_t)page;
  return CUDA_SUCCESS;
}
static CUresult release_page(CUmemGenericAllocationHandle handle) {
  Page *page = (Page *)(uintptr_t)handle;
  pthread_mutex_lock(&mutex);
  used[page->device] -= page->size;
  pthread_mutex_unlock(&mutex);
  free(page);
  return CUDA_SUCCESS;
}
static CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle h,
                    unsigned long long f) {
  LOG("cuMemMap(%#llx, %zu)\n", (unsigned long long)address, size);
  return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr address, size_t size) {
  LOG("cuMemUnmap(%#llx, %zu)\n", (unsigned long long)address, size);
  return CUDA_SUCCESS;
}
static CUresult succeed(void) { return CUDA_SUCCESS; }
static CUresult unsupported(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult error_text(CUresult error, const char **text) {
  *text = "error from the emulated GPU";
  return CUDA_SUCCESS;
}
static CUresult no_attribute(int *value, CUdevice_attribute a, CUdevice device) { *value = 0; return CUDA_SUCCESS; }
static CUresult get_device(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
static CUresult get_context(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
static CUresult context_state(CUdevice device, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

// The driver function of that name.  Also called by the stand-in for libcuda.so.1 (fakedrv.c).
void *fake_driver_function(const char *name) {
  static const struct { const char *name; void *function; } table[] = {
      {"cuMemAddressReserve", reserve}, {"cuMemAddressFree", unreserve},
      {"cuMemCreate", create_page},     {"cuMemRelease", release_page},
      {"cuMemMap", map},                {"cuMemUnmap", unmap},
      {"cuMemSetAccess", succeed},      {"cuGetErrorString", error_text},
      {"cuDeviceGet", get_device},      {"cuDeviceGetAttribute", no_attribute},
      {"cuCtxGetCurrent", get_context}, {"cuCtxSetCurrent", succeed},
      {"cuDevicePrimaryCtxGetState", context_state}, {"cuDevicePrimaryCtxRetain", succeed},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(name, table[i].name)) return table[i].function;
  return unsupported;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  *function = fake_driver_function(name);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
