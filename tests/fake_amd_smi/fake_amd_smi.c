/*
 * A stand-in for libamd_smi.so, driven by the text file that FAKE_AMD_SMI_SCENARIO names, in the language of
 * ../fake_nvml/fake_nvml.c. Structures have the layout of amdsmi.h in version ABI: 24 (ROCm 6.2 and 6.3), 25 (6.4) or
 * 26 (7). They are declared by hand: only their layout in memory matters, and the whole of one is written, as the real
 * library does.
 *
 * A function that fills a structure answers where it has a line, and takes each field from the key FUNCTION.FIELD.
 * What has no line is what the real library leaves there: ones in GPU metrics, zero elsewhere. Processes are words
 * PID:BYTES, retired pages words of their status; temperatures have the key FUNCTION.SENSOR.METRIC, clocks
 * FUNCTION.TYPE.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2, OUT_OF_RESOURCES = 15, UNINITIALIZED = 32 };
#define SCENARIO_VARIABLE "FAKE_AMD_SMI_SCENARIO"
#define TRACE_VARIABLE "FAKE_AMD_SMI_TRACE"
#include "../fake_nvml/scenario.h"

#if ABI == 24
enum { NAME = 64, SERIAL = 32, DATE = 32, PART = 64, VBIOS = 32, PROCESS = 32, SPARE = 4 };
#else
enum { NAME = 256, SERIAL = 256, DATE = ABI == 25 ? 32 : 256, PART = 256, VBIOS = 256, PROCESS = 256, SPARE = 12 };
#endif

typedef struct {
    uint32_t gfx_busy[8]; uint16_t jpeg_busy[ABI == 24 ? 32 : 40], vcn_busy[4]; uint64_t gfx_busy_acc[8];
#if ABI > 24
    uint64_t below_limit[ABI == 25 ? 1 : 5][8];
#endif
#if ABI > 25
    uint16_t temperature_xcd[8];
#endif
} xcp_t;
typedef struct {
    uint16_t structure_size; uint8_t format_revision, content_revision;
    uint16_t temperature_edge, temperature_hotspot, temperature_mem, temperature_vr[3];
    uint16_t average_gfx_activity, average_umc_activity, average_mm_activity, average_socket_power;
    uint64_t energy_accumulator, system_clock_counter;
    uint16_t average_gfxclk_frequency, average_socclk_frequency, average_uclk_frequency, average_others[4];
    uint16_t current_gfxclk, current_socclk, current_uclk, current_others[4];
    uint32_t throttle_status;
    uint16_t current_fan_speed, pcie_link_width, pcie_link_speed;
    uint32_t activity_acc[2];
    uint16_t temperature_hbm[4];
    uint64_t firmware_timestamp;
    uint16_t voltages[3];
    uint64_t indep_throttle_status;
    uint16_t current_socket_power, vcn_activity[4];
    uint32_t gfxclk_lock_status;
    uint16_t xgmi_link[2];
    uint64_t pcie_acc[5], xgmi_acc[2][8];
    uint16_t current_gfxclks[8], current_clks[3][4], jpeg_activity[32];
    uint32_t pcie_nak[2];
    uint64_t accumulation_counter, prochot_residency_acc, ppt_residency_acc, socket_thm_residency_acc;
    uint64_t vr_thm_residency_acc, hbm_thm_residency_acc;
    uint16_t num_partition;
    xcp_t xcp_stats[8];
    uint32_t pcie_recovery;
#if ABI > 24
    uint64_t vram_max_bandwidth; uint16_t xgmi_link_status[8];
#endif
#if ABI > 25
    uint16_t later[20]; void *apu_metrics;
#endif
} metrics_t;
typedef struct {
    struct { uint16_t max_pcie_width; uint32_t max_pcie_speed, pcie_interface_version, slot_type; uint64_t spare[10]; };
    struct {
        uint16_t pcie_width; uint32_t pcie_speed, pcie_bandwidth;
        uint64_t pcie_replay_count, counts[2], pcie_nak_sent_count, pcie_nak_received_count, spare_too[13];
    };
    uint64_t reserved[32];
} pcie_t;
typedef struct { uint64_t power_cap, default_power_cap, dpm_cap, min_power_cap, max_power_cap, reserved[3]; } cap_t;
typedef struct { uint32_t vram_total, vram_used, reserved[2]; } vram_t;
typedef struct { uint32_t clk, min_clk, max_clk; uint8_t locked, deep_sleep; uint32_t reserved[4]; } clock_info_t;
typedef struct { uint64_t correctable_count, uncorrectable_count, deferred_count, reserved[5]; } errors_t;
typedef struct { uint64_t address, size; uint32_t status; } page_t;
typedef struct {
    char market_name[256]; uint32_t vendor_id; char vendor_name[NAME]; uint32_t subvendor_id; uint64_t device_id;
    uint32_t rev_id; char asic_serial[SERIAL]; uint32_t oam_id, units; uint64_t target; uint32_t reserved[22];
} asic_t;
typedef struct { char name[PART], build_date[DATE], part_number[PART], version[VBIOS]; uint64_t reserved[32]; } vbios_t;
typedef struct { char version[NAME], date[NAME], name[NAME]; } driver_t;
typedef struct {
    char name[PROCESS]; uint32_t pid; uint64_t mem, engines[8], gtt_mem, cpu_mem, vram_mem; uint32_t spare[10];
    char container_name[PROCESS]; uint32_t reserved[SPARE];
} process_t;

/* Of the real header, as compiled from it. */
_Static_assert(sizeof(pcie_t) == 512 && offsetof(pcie_t, pcie_width) == 96, "amdsmi_pcie_info_t");
_Static_assert(sizeof(process_t) == (ABI == 24 ? 224 : 704), "amdsmi_proc_info_t");
_Static_assert(offsetof(metrics_t, accumulation_counter) == 424, "amdsmi_gpu_metrics_t");
_Static_assert(ABI != 24 || sizeof(metrics_t) == 1832, "amdsmi_gpu_metrics_t");
_Static_assert(ABI != 26 || sizeof(metrics_t) == 4720, "amdsmi_gpu_metrics_t");
_Static_assert(offsetof(asic_t, asic_serial) == (ABI == 24 ? 340 : 532), "amdsmi_asic_info_t");

static int gpu_of(void *handle) { return (int)((char *)handle - handles); }

static unsigned long long number(const char *text) { return strtoull(text, NULL, 0); }

/* The value of a field, `otherwise` without a line. */
static unsigned long long field(void *gpu, const char *function, const char *name, unsigned long long otherwise)
{
    char key[TEXT];
    const char *value;
    snprintf(key, sizeof key, "%s.%s", function, name);
    value = find(gpu_of(gpu), key, 0);
    return value ? number(value) : otherwise;
}

static void text_field(void *gpu, const char *function, const char *name, char *out, size_t size)
{
    char key[TEXT];
    const char *value;
    snprintf(key, sizeof key, "%s.%s", function, name);
    value = find(gpu_of(gpu), key, 0);
    snprintf(out, size, "%s", value ? value : "");
}

#define SET(name, otherwise) out->name = field(gpu, __func__, #name, otherwise)
#define SET_TEXT(name) text_field(gpu, __func__, #name, out->name, sizeof out->name)
#define ANSWER(name) \
    char text[LONG_TEXT]; \
    int code = answer_at_most(gpu_of(gpu), name, text, sizeof text); \
    if (code != SUCCESS) \
        return code

/* The session. */

int amdsmi_init(uint64_t flags)
{
    const char *value;
    int code;
    long milliseconds;
    (void)flags;
    pthread_mutex_lock(&mutex);
    read_scenario();
    milliseconds = system_number("amdsmi_init:delay", 0);
    value = find(SYSTEM, "amdsmi_init", 0);
    code = value && value[0] == '!' ? atoi(value + 1) : SUCCESS;
    pthread_mutex_unlock(&mutex);
    nanosleep(&(struct timespec){ milliseconds / 1000, milliseconds % 1000 * 1000000 }, NULL);
    if (code == SUCCESS)
        session = (int)system_number("generation", 1);
    return code;
}

int amdsmi_get_lib_version(uint32_t *out)
{
    const char *value;
    read_scenario();
    value = find(SYSTEM, "amdsmi_get_lib_version", 0);
    out[0] = ABI;
    out[1] = ABI == 24 ? 7 : ABI == 25 ? 5 : 2;
    return value && sscanf(value, "%u %u", &out[0], &out[1]) < 1 ? INVAL : SUCCESS;
}

int amdsmi_get_socket_handles(uint32_t *count, void **out)
{
    char text[TEXT];
    int code = answer(SYSTEM, "amdsmi_get_socket_handles", text);
    unsigned found = (unsigned)system_number("gpus", 0);
    if (code != SUCCESS && code != NOT_SUPPORTED) /* needs no line in the scenario */
        return code;
    for (unsigned i = 0; out && i < found && i < *count; i++)
        out[i] = &handles[i];
    *count = found;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **out)
{
    if (out && *count)
        out[0] = socket;
    *count = 1;
    return SUCCESS;
}

int amdsmi_get_processor_type(void *gpu, uint32_t *out)
{
    *out = (uint32_t)field(gpu, __func__, "type", 1);
    return SUCCESS;
}

/* Identity. */

int amdsmi_get_gpu_device_bdf(void *gpu, uint64_t *out)
{
    unsigned domain, bus, device, function;
    ANSWER(__func__);
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return INVAL;
    *out = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
    return SUCCESS;
}

int amdsmi_get_gpu_asic_info(void *gpu, asic_t *out)
{
    ANSWER(__func__);
    SET_TEXT(market_name);
    SET_TEXT(asic_serial);
    out->vendor_id = 0x1002;
    out->oam_id = out->units = (uint32_t)-1;
    return SUCCESS;
}

int amdsmi_get_gpu_vbios_info(void *gpu, vbios_t *out)
{
    ANSWER(__func__);
    SET_TEXT(version);
    return SUCCESS;
}

int amdsmi_get_gpu_driver_info(void *gpu, driver_t *out)
{
    ANSWER(__func__);
    snprintf(out->version, sizeof out->version, "%.63s", text);
    return SUCCESS;
}

int amdsmi_get_gpu_topo_numa_affinity(void *gpu, int32_t *out)
{
    ANSWER(__func__);
    *out = atoi(text);
    return SUCCESS;
}

/* What changes. */

int amdsmi_get_gpu_metrics_info(void *gpu, metrics_t *out)
{
    ANSWER(__func__);
    memset(out, 0xFF, sizeof *out);
    SET(temperature_edge, -1);
    SET(temperature_hotspot, -1);
    SET(temperature_mem, -1);
    SET(average_gfx_activity, -1);
    SET(average_umc_activity, -1);
    SET(average_socket_power, -1);
    SET(current_socket_power, -1);
    SET(energy_accumulator, -1);
    SET(system_clock_counter, -1);
    SET(average_gfxclk_frequency, -1);
    SET(current_gfxclk, -1);
    SET(current_uclk, -1);
    SET(indep_throttle_status, -1);
    SET(accumulation_counter, -1);
    SET(prochot_residency_acc, -1);
    SET(ppt_residency_acc, -1);
    SET(socket_thm_residency_acc, -1);
    SET(vr_thm_residency_acc, -1);
    SET(hbm_thm_residency_acc, -1);
    for (int die = 0; die < 8; die++) {
        char name[TEXT];
        snprintf(name, sizeof name, "current_gfxclks.%d", die);
        out->current_gfxclks[die] = (uint16_t)field(gpu, __func__, name, -1);
    }
    return SUCCESS;
}

int amdsmi_get_pcie_info(void *gpu, pcie_t *out)
{
    ANSWER(__func__);
    memset(out, 0, sizeof *out);
    SET(max_pcie_width, 0);
    SET(max_pcie_speed, 0);
    SET(pcie_width, 0);
    SET(pcie_speed, 0);
    SET(pcie_replay_count, -1);
    SET(pcie_nak_sent_count, -1);
    SET(pcie_nak_received_count, -1);
    return SUCCESS;
}

int amdsmi_get_power_cap_info(void *gpu, uint32_t sensor, cap_t *out)
{
    ANSWER(__func__);
    if (sensor)
        return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    SET(power_cap, 0);
    SET(default_power_cap, 0);
    SET(min_power_cap, 0);
    SET(max_power_cap, 0);
    return SUCCESS;
}

int amdsmi_get_gpu_vram_usage(void *gpu, vram_t *out)
{
    ANSWER(__func__);
    SET(vram_total, 0);
    SET(vram_used, 0);
    return SUCCESS;
}

int amdsmi_get_clock_info(void *gpu, uint32_t type, clock_info_t *out)
{
    char text[TEXT];
    int code = answer_selected(gpu_of(gpu), __func__, (int)type, text);
    if (code == SUCCESS)
        *out = (clock_info_t){ .max_clk = (uint32_t)number(text) };
    return code;
}

int amdsmi_get_temp_metric(void *gpu, uint32_t sensor, uint32_t metric, int64_t *out)
{
    char key[TEXT];
    snprintf(key, sizeof key, "%s.%u.%u", __func__, sensor, metric);
    ANSWER(key);
    *out = atoll(text);
    return SUCCESS;
}

int amdsmi_get_gpu_ecc_enabled(void *gpu, uint64_t *out)
{
    ANSWER(__func__);
    *out = number(text);
    return SUCCESS;
}

/* Adds to what it finds, as the real one. */
int amdsmi_get_gpu_total_ecc_count(void *gpu, errors_t *out)
{
    ANSWER(__func__);
    out->correctable_count += field(gpu, __func__, "correctable_count", 0);
    out->uncorrectable_count += field(gpu, __func__, "uncorrectable_count", 0);
    return SUCCESS;
}

int amdsmi_get_gpu_bad_page_info(void *gpu, uint32_t *size, page_t *out)
{
    char *rest, *word;
    unsigned found = 0;
    ANSWER(__func__);
    for (rest = text; (word = strsep(&rest, " "));) {
        if (!*word)
            continue;
        if (out && found < *size)
            out[found] = (page_t){ found * 4096, 4096, (uint32_t)number(word) };
        found++;
    }
    *size = found;
    return SUCCESS;
}

int amdsmi_get_gpu_bad_page_threshold(void *gpu, uint32_t *out)
{
    ANSWER(__func__);
    *out = (uint32_t)number(text);
    return SUCCESS;
}

int amdsmi_get_gpu_process_list(void *gpu, uint32_t *size, process_t *out)
{
    char *rest, *word;
    unsigned found = 0, room = out ? *size : 0;
    ANSWER(__func__);
    for (rest = text; (word = strsep(&rest, " "));) {
        process_t process = { 0 };
        unsigned long long bytes;
        if (sscanf(word, "%u:%llu", &process.pid, &bytes) < 2)
            continue;
        process.mem = process.vram_mem = bytes;
        if (found < room)
            out[found] = process;
        found++;
    }
    *size = found;
    return room && found > room ? OUT_OF_RESOURCES : SUCCESS;
}
