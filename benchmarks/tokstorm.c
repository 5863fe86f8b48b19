// tokstorm: the worker and the clients of a measurement in one process, so that one clock sees both sides of a proxy.
//
//     clients (here) --> [proxy under test, or nothing] --> worker (here)
//
// The worker streams chat completions as vLLM writes them. Each token's text is the instant at which it was written, so a
// client that reads it knows how long it was under way. One thread, one epoll; with -B 1 it spins instead of sleeping, so
// that a proxy that is slower than this tool does not also pay for waking it.
//
// Prints one line of JSON: requests, tokens, errors (answers cut short, refused or without all their tokens), wall seconds,
// rates, and how late first tokens and all tokens came.
//
//     -p PORT   where the clients connect (the proxy)           -m PORT   where the worker listens
//     -c COUNT  clients, each with one request at a time        -r COUNT  requests in total
//     -t SECS   seconds to run, instead of -r                   -s 0|1    streamed answers (1) or plain ones (0)
//     -n COUNT  tokens of a stream                              -i US     microseconds between tokens; 0: at once
//     -b COUNT  tokens of one write when -i is 0                -P BYTES  length of the prompt
//     -u 0|1    ask for usage in streams                        -f 1      a fresh connection for each request
//     -B 1      spin                                            --serve   the worker only, until killed
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_BYTES = 65536,     // least room for one read
    TEXT_BYTES = 65536,     // most of an answer that is kept while no token shows up
    TEXT_DIGITS = 16,       // of the instant that is a token's text
    EVENTS = 512,           // of one epoll call
    SLEEP_NS = 50000000,    // longest sleep when nothing is due
    EXIT_CANNOT_START = 2,  // also when the proxy takes no connection
};
static const uint64_t STALLED_NS = 10000000000ull;  // without a token or an answer the run is given up

static struct {
    int clients, tokens, requests, prompt_bytes, interval_us, proxy_port, worker_port;
    int fresh, burst, usage, spin, stream, serve;
    double seconds;
} options = {
    .clients = 64,
    .tokens = 128,
    .requests = 2000,
    .prompt_bytes = 2000,
    .proxy_port = 8000,
    .worker_port = 9000,
    .burst = 1,
    .usage = 1,
    .stream = 1,
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void *grown(void *block, size_t bytes) {
    block = realloc(block, bytes);
    if (!block) {
        perror("memory");
        exit(EXIT_CANNOT_START);
    }
    return block;
}

// ---- histograms: steps of 0.25 us up to 16 us, then 32 steps for each doubling --------------------------------------

enum { LINEAR = 64, STEPS = 32, BUCKETS = 4096 };

typedef struct {
    uint64_t counts[BUCKETS], count, max_ns;
} Histogram;

static void observe(Histogram *histogram, uint64_t ns) {
    uint64_t quarters = ns / 250;
    int bucket = (int)quarters;
    if (quarters >= LINEAR) {
        int exponent = 63 - __builtin_clzll(quarters);
        int step = (int)(quarters >> (exponent - 5)) & (STEPS - 1);
        bucket = LINEAR + (exponent - 6) * STEPS + step;
    }
    histogram->counts[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    histogram->count++;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
}

static double lower_bound_us(int bucket) {
    if (bucket < LINEAR)
        return bucket * 0.25;
    int exponent = (bucket - LINEAR) / STEPS + 6;
    uint64_t step = (uint64_t)((bucket - LINEAR) % STEPS);
    return (double)((1ull << exponent) + (step << (exponent - 5))) * 0.25;
}

static double quantile_us(const Histogram *histogram, double share) {
    uint64_t rank = (uint64_t)(share * (double)histogram->count), seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen > rank)
            return lower_bound_us(bucket);
    }
    return lower_bound_us(BUCKETS - 1);
}

static Histogram first_tokens, all_tokens, answers;
static uint64_t requests_done, requests_started, tokens_seen, errors, end_ns;

// ---- connections -----------------------------------------------------------------------------------------------------

typedef enum { LISTENER, WORKER, CLIENT } Kind;
typedef enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, LAST_CHUNK } Framing;

typedef struct {
    char *bytes;
    size_t length, capacity;
} Buffer;

typedef struct {
    int fd;  // -1: closed
    Kind kind;
    Buffer in;   // a worker's requests; a client's bytes that are not decoded yet
    Buffer out;  // not sent yet, from `sent` on
    size_t sent;
    bool waits_to_write;
    // of the worker
    bool is_streaming;
    int tokens_left;
    uint64_t next_token_ns;
    // of a client
    uint64_t request_ns;
    int tokens;
    bool has_answer, is_answered, is_idle;  // idle: no more requests to send
    bool has_head, is_chunked;
    Framing framing;
    size_t chunk_left;
    Buffer text;  // the answer's body out of its chunks, behind the last token
} Connection;

static int epoll_fd;

static void watch(Connection *connection, int operation, bool writes) {
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(epoll_fd, operation, connection->fd, &event);
}

static void wait_to_write(Connection *connection, bool waits) {
    watch(connection, EPOLL_CTL_MOD, waits);
    connection->waits_to_write = waits;
}

static Connection *new_connection(int fd, Kind kind) {
    Connection *connection = grown(NULL, sizeof *connection);
    memset(connection, 0, sizeof *connection);
    connection->fd = fd;
    connection->kind = kind;
    watch(connection, EPOLL_CTL_ADD, false);
    return connection;
}

static void close_connection(Connection *connection) {
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    close(connection->fd);
    connection->fd = -1;
    connection->is_streaming = false;
}

static void set_up_socket(int fd) {
    int on = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void put(Connection *connection, const char *bytes, size_t length) {
    Buffer *out = &connection->out;
    if (out->length + length > out->capacity) {
        out->capacity = (out->length + length) * 2 + 4096;
        out->bytes = grown(out->bytes, out->capacity);
    }
    memcpy(out->bytes + out->length, bytes, length);
    out->length += length;
}

static void flush_out(Connection *connection) {
    while (connection->sent < connection->out.length) {
        ssize_t written = send(connection->fd, connection->out.bytes + connection->sent,
                               connection->out.length - connection->sent, MSG_NOSIGNAL);
        if (written < 0) {
            if (errno == EAGAIN) {
                if (!connection->waits_to_write)
                    wait_to_write(connection, true);
                return;
            }
            break;  // the other side is gone; reading will tell
        }
        connection->sent += (size_t)written;
    }
    connection->sent = connection->out.length = 0;
    if (connection->waits_to_write)
        wait_to_write(connection, false);
}

// Reads all there is, with one byte of room behind it. False: the other side has closed.
static bool fill(Connection *connection) {
    Buffer *in = &connection->in;
    for (;;) {
        if (in->capacity - in->length < READ_BYTES) {
            in->capacity = in->capacity * 2 + 2 * READ_BYTES;
            in->bytes = grown(in->bytes, in->capacity);
        }
        ssize_t count = recv(connection->fd, in->bytes + in->length, in->capacity - in->length - 1, 0);
        if (count < 0 && errno == EAGAIN)
            return true;
        if (count <= 0)
            return false;
        if (connection->kind == CLIENT)
            connection->has_answer = true;
        in->length += (size_t)count;
    }
}

static void drop_front(Buffer *buffer, size_t length) {
    memmove(buffer->bytes, buffer->bytes + length, buffer->length - length);
    buffer->length -= length;
}

static char *find(const char *bytes, size_t length, const char *text) {
    return memmem(bytes, length, text, strlen(text));
}

// ---- heads -----------------------------------------------------------------------------------------------------------

typedef struct {
    size_t body_bytes;
    bool is_chunked;
} Head;

// `end` is where the blank line begins, which is there.
static Head parse_head(const char *bytes, const char *end) {
    Head head = {0};
    for (const char *line = bytes; line < end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line) + 2);
        if (!newline)
            break;
        if (!strncasecmp(line, "content-length:", 15))
            head.body_bytes = strtoul(line + 15, NULL, 10);
        if (!strncasecmp(line, "transfer-encoding:", 18))
            head.is_chunked = true;
        line = newline + 1;
    }
    return head;
}

// ---- the worker ------------------------------------------------------------------------------------------------------

#define EVENT_START                                                                                                            \
    "data: {\"id\":\"chatcmpl-7a1f0f0d3c4b4d0c9c8a5f1f1a2b3c4d\",\"object\":\"chat.completion.chunk\",\"created\":1764436800," \
    "\"model\":\"m\",\"choices\":["

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: uvicorn\r\n"
    "transfer-encoding: chunked\r\n\r\n";
static const char ROLE_EVENT[] = EVENT_START
    "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char LAST_EVENT[] = EVENT_START
    "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}]}\n\n";
static const char DONE_EVENT[] = "data: [DONE]\n\n";
static const char LAST_CHUNK_BYTES[] = "0\r\n\r\n";

static const char PLAIN_ANSWER[] =
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1764436800,\"model\":\"m\",\"choices\":[{\"index\":0,"
    "\"message\":{\"role\":\"assistant\",\"content\":\"hello there\"},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":10,\"total_tokens\":12,\"completion_tokens\":2}}";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":1764436800,\"owned_by\":\"vllm\","
    "\"root\":\"m\",\"max_model_len\":1048576}]}";
static const char METRICS[] =
    "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
    "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n"
    "# HELP vllm:num_requests_waiting x\n# TYPE vllm:num_requests_waiting gauge\n"
    "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n"
    "# HELP vllm:kv_cache_usage_perc x\n# TYPE vllm:kv_cache_usage_perc gauge\n"
    "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.0\n";

static Connection **workers;  // the worker's connections; closed ones keep their place until it is needed
static int worker_count, worker_capacity;

static void put_chunk(Connection *connection, const char *bytes, int length) {
    char size[32];
    put(connection, size, (size_t)sprintf(size, "%x\r\n", (unsigned)length));
    put(connection, bytes, (size_t)length);
    put(connection, "\r\n", 2);
}

static void put_token(Connection *connection) {
    char event[512];
    int length = sprintf(event,
                         EVENT_START
                         "{\"index\":0,\"delta\":{\"content\":\" %016llu\"},\"logprobs\":null,"
                         "\"finish_reason\":null,\"token_ids\":null}]}\n\n",
                         (unsigned long long)now_ns());
    put_chunk(connection, event, length);
    connection->tokens_left--;
}

static void start_stream(Connection *connection) {
    put(connection, STREAM_HEAD, sizeof STREAM_HEAD - 1);
    put_chunk(connection, ROLE_EVENT, sizeof ROLE_EVENT - 1);
    connection->is_streaming = true;
    connection->tokens_left = options.tokens;
    connection->next_token_ns = now_ns();
}

static void end_stream(Connection *connection) {
    char usage[768];
    int prompt = options.prompt_bytes / 4;
    int length = sprintf(usage,
                         EVENT_START
                         "],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d,"
                         "\"prompt_tokens_details\":{\"cached_tokens\":128}}}\n\n",
                         prompt, prompt + options.tokens, options.tokens);
    put_chunk(connection, LAST_EVENT, sizeof LAST_EVENT - 1);
    put_chunk(connection, usage, length);  // also when it was not asked for: the cost is the proxy's that asks
    put_chunk(connection, DONE_EVENT, sizeof DONE_EVENT - 1);
    put(connection, LAST_CHUNK_BYTES, sizeof LAST_CHUNK_BYTES - 1);
    connection->is_streaming = false;
}

static void put_answer(Connection *connection, const char *type, const char *body) {
    char head[256];
    int length = sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\nserver: uvicorn\r\ncontent-length: %zu\r\n\r\n", type,
                         strlen(body));
    put(connection, head, (size_t)length);
    put(connection, body, strlen(body));
}

static void answer(Connection *connection, const char *request, const char *body, size_t body_bytes) {
    if (!strncmp(request, "POST", 4)) {
        if (find(body, body_bytes, "\"stream\":true") || find(body, body_bytes, "\"stream\": true"))
            start_stream(connection);
        else
            put_answer(connection, "application/json", PLAIN_ANSWER);
    } else if (!strncmp(request, "GET /v1/models", 14)) {
        put_answer(connection, "application/json", MODELS);
    } else if (!strncmp(request, "GET /metrics", 12)) {
        put_answer(connection, "text/plain; version=0.0.4", METRICS);
    } else {
        put_answer(connection, "application/json", "{}");
    }
}

static void read_requests(Connection *connection) {
    if (!fill(connection)) {
        close_connection(connection);
        return;
    }
    Buffer *in = &connection->in;
    for (;;) {
        in->bytes[in->length] = 0;
        char *end = find(in->bytes, in->length, "\r\n\r\n");
        if (!end)
            return;
        Head head = parse_head(in->bytes, end);
        size_t head_bytes = (size_t)(end - in->bytes) + 4, total = head_bytes + head.body_bytes;
        if (head.is_chunked) {
            char *last = find(in->bytes + head_bytes, in->length - head_bytes, "\r\n0\r\n\r\n");
            if (!last)
                return;
            total = (size_t)(last - in->bytes) + 7;
        }
        if (in->length < total)
            return;
        answer(connection, in->bytes, in->bytes + head_bytes, total - head_bytes);
        drop_front(in, total);
        flush_out(connection);
    }
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            return;
        set_up_socket(fd);
        Connection *connection = new_connection(fd, WORKER);
        int place = 0;
        while (place < worker_count && workers[place]->fd >= 0)
            place++;
        if (place < worker_count) {
            free(workers[place]->in.bytes);
            free(workers[place]->out.bytes);
            free(workers[place]);
        } else {
            if (worker_count == worker_capacity) {
                worker_capacity = worker_capacity * 2 + 64;
                workers = grown(workers, (size_t)worker_capacity * sizeof(Connection *));
            }
            worker_count++;
        }
        workers[place] = connection;
    }
}

// Writes what is due on all streams. Returns when the next token is due, at most SLEEP_NS ahead.
static uint64_t write_tokens(void) {
    uint64_t now = now_ns(), next = now + SLEEP_NS;
    for (int place = 0; place < worker_count; place++) {
        Connection *connection = workers[place];
        if (connection->fd < 0 || !connection->is_streaming)
            continue;
        if (options.interval_us == 0) {  // as fast as the other side reads
            if (connection->sent == connection->out.length) {
                for (int written = 0; written < options.burst && connection->tokens_left > 0; written++)
                    put_token(connection);
                if (!connection->tokens_left)
                    end_stream(connection);
                flush_out(connection);
            }
            next = now;
            continue;
        }
        if (connection->next_token_ns <= now) {
            put_token(connection);
            connection->next_token_ns += (uint64_t)options.interval_us * 1000;
            if (!connection->tokens_left)
                end_stream(connection);
            flush_out(connection);
        }
        if (connection->is_streaming && connection->next_token_ns < next)
            next = connection->next_token_ns;
    }
    return next;
}

// ---- the clients -----------------------------------------------------------------------------------------------------

static char *request;
static size_t request_bytes;

static void make_request(void) {
    char *prompt = grown(NULL, (size_t)options.prompt_bytes + 1);
    for (int i = 0; i < options.prompt_bytes; i++)
        prompt[i] = (char)(i % 6 == 5 ? ' ' : 'a' + (i * 7) % 26);
    prompt[options.prompt_bytes] = 0;
    const char *stream = "";
    if (options.stream)
        stream = options.usage ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : ",\"stream\":true";
    char *body = grown(NULL, (size_t)options.prompt_bytes + 512);
    int body_bytes =
        sprintf(body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d%s}", prompt,
                options.tokens, stream);
    request = grown(NULL, (size_t)body_bytes + 512);
    request_bytes =
        (size_t)sprintf(request,
                        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer sk-test\r\n"
                        "Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: tokstorm\r\n"
                        "Content-Length: %d\r\n\r\n%s",
                        options.proxy_port, body_bytes, body);
    free(prompt);
    free(body);
}

static int connect_client(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = loopback(options.proxy_port);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        perror("connect");
        exit(EXIT_CANNOT_START);
    }
    set_up_socket(fd);
    return fd;
}

static void send_request(Connection *client) {
    if (options.seconds > 0 ? now_ns() >= end_ns : requests_started >= (uint64_t)options.requests) {
        client->is_idle = true;
        return;
    }
    requests_started++;
    client->has_answer = client->is_answered = client->has_head = client->is_chunked = false;
    client->tokens = 0;
    client->framing = CHUNK_SIZE;
    client->chunk_left = client->in.length = client->text.length = 0;
    client->request_ns = now_ns();
    put(client, request, request_bytes);
    flush_out(client);
}

static void reconnect(Connection *client) {
    client->fd = connect_client();
    watch(client, EPOLL_CTL_ADD, false);
}

static void finish_request(Connection *client) {
    requests_done++;
    observe(&answers, now_ns() - client->request_ns);
    if (options.stream && client->tokens != options.tokens)
        errors++;
    if (options.fresh) {
        close_connection(client);
        reconnect(client);
    }
    send_request(client);
}

// Moves bytes of the body from `in` to `text`. Sets `is_answered` at its end.
static void decode(Connection *client) {
    Buffer *in = &client->in, *text = &client->text;
    char *from = in->bytes, *end = in->bytes + in->length;
    if (text->capacity < text->length + in->length) {
        text->capacity = (text->length + in->length) * 2 + READ_BYTES;
        text->bytes = grown(text->bytes, text->capacity);
    }
    if (!client->is_chunked) {
        memcpy(text->bytes + text->length, from, in->length);
        text->length += in->length;
        from = end;
    }
    while (from < end && !client->is_answered) {
        size_t there = (size_t)(end - from);
        if (client->framing == CHUNK_SIZE) {
            char *newline = memchr(from, '\n', there);
            if (!newline)
                break;
            client->chunk_left = strtoul(from, NULL, 16);
            client->framing = client->chunk_left ? CHUNK_DATA : LAST_CHUNK;
            from = newline + 1;
        } else if (client->framing == CHUNK_DATA) {
            size_t taken = there < client->chunk_left ? there : client->chunk_left;
            memcpy(text->bytes + text->length, from, taken);
            text->length += taken;
            from += taken;
            client->chunk_left -= taken;
            if (!client->chunk_left)
                client->framing = CHUNK_END;
        } else {  // the line's end after a chunk, or after the last one
            if (there < 2)
                break;
            from += 2;
            if (client->framing == LAST_CHUNK)
                client->is_answered = true;
            client->framing = CHUNK_SIZE;
        }
    }
    drop_front(in, (size_t)(from - in->bytes));
}

// Takes the whole tokens out of `text`, which arrived at `now`.
static void take_tokens(Connection *client, uint64_t now) {
    static const char MARK[] = "\"content\":\" ";
    Buffer *text = &client->text;
    char *from = text->bytes, *end = text->bytes + text->length;
    for (;;) {
        char *mark = memmem(from, (size_t)(end - from), MARK, sizeof MARK - 1);
        if (!mark)
            break;
        char *digits = mark + sizeof MARK - 1;
        if (digits + TEXT_DIGITS > end)
            break;
        if (*digits >= '0' && *digits <= '9') {
            uint64_t delay = now - strtoull(digits, NULL, 10);
            observe(&all_tokens, delay);
            if (!client->tokens)
                observe(&first_tokens, delay);
            client->tokens++;
            tokens_seen++;
        }
        from = digits + TEXT_DIGITS;
    }
    drop_front(text, (size_t)(from - text->bytes));
    if (text->length > TEXT_BYTES)
        drop_front(text, text->length - 64);
}

static void read_stream(Connection *client, uint64_t now) {
    if (!client->has_head) {
        char *end = find(client->in.bytes, client->in.length, "\r\n\r\n");
        if (!end)
            return;
        client->has_head = true;
        client->is_chunked = parse_head(client->in.bytes, end).is_chunked;
        drop_front(&client->in, (size_t)(end - client->in.bytes) + 4);
    }
    decode(client);
    take_tokens(client, now);
    if (client->is_answered)
        finish_request(client);
}

static void read_plain(Connection *client) {
    char *end = find(client->in.bytes, client->in.length, "\r\n\r\n");
    if (!end)
        return;
    size_t body_bytes = parse_head(client->in.bytes, end).body_bytes;
    size_t head_bytes = (size_t)(end - client->in.bytes) + 4;
    bool is_whole = body_bytes ? client->in.length >= head_bytes + body_bytes
                               : find(end, client->in.length - head_bytes + 4, LAST_CHUNK_BYTES) != NULL;
    if (!is_whole)
        return;
    if (strncmp(client->in.bytes, "HTTP/1.1 200", 12) != 0)
        errors++;  // a refusal is cheap and must not pass for an answer
    finish_request(client);
}

static void read_answer(Connection *client) {
    if (!fill(client)) {
        if (!client->is_idle && client->has_answer)
            errors++;  // cut short; closed before any byte, it is asked again
        close_connection(client);
        if (client->is_idle)
            return;
        reconnect(client);
        requests_done++;
        send_request(client);
        return;
    }
    uint64_t now = now_ns();
    client->in.bytes[client->in.length] = 0;
    if (options.stream)
        read_stream(client, now);
    else
        read_plain(client);
}

// ---- the run ---------------------------------------------------------------------------------------------------------

static void parse_options(int count, char **words) {
    const struct {
        char letter;
        int *value;
    } numbers[] = {
        {'c', &options.clients},     {'n', &options.tokens},      {'r', &options.requests},     {'p', &options.proxy_port},
        {'m', &options.worker_port}, {'i', &options.interval_us}, {'P', &options.prompt_bytes}, {'s', &options.stream},
        {'f', &options.fresh},       {'b', &options.burst},       {'B', &options.spin},         {'u', &options.usage},
    };
    for (int i = 1; i < count; i++) {
        bool is_known = false;
        if (!strcmp(words[i], "--serve")) {
            options.serve = 1;
            continue;
        }
        if (words[i][0] == '-' && words[i][1] && !words[i][2] && i + 1 < count) {
            if (words[i][1] == 't') {
                options.seconds = atof(words[i + 1]);
                is_known = true;
            }
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
                if (words[i][1] == numbers[k].letter) {
                    *numbers[k].value = atoi(words[i + 1]);
                    is_known = true;
                }
            }
        }
        if (!is_known) {
            fprintf(stderr, "tokstorm: unknown option, or one without its value: %s\n", words[i]);
            exit(EXIT_CANNOT_START);
        }
        i++;
    }
}

static int listen_as_worker(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = loopback(options.worker_port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) {
        perror("bind");
        exit(EXIT_CANNOT_START);
    }
    set_up_socket(fd);
    return fd;
}

static void wait_for_events(int listener, uint64_t until_ns) {
    struct epoll_event events[EVENTS];
    struct timespec pause = {0, 0};
    uint64_t now = now_ns();
    if (until_ns > now && !options.spin) {
        pause.tv_sec = (time_t)((until_ns - now) / 1000000000ull);
        pause.tv_nsec = (long)((until_ns - now) % 1000000000ull);
    }
    int count = epoll_pwait2(epoll_fd, events, EVENTS, &pause, NULL);
    for (int i = 0; i < count; i++) {
        Connection *connection = events[i].data.ptr;
        if (connection->fd < 0)
            continue;
        if (connection->kind == LISTENER) {
            accept_all(listener);
            continue;
        }
        if (events[i].events & EPOLLOUT)
            flush_out(connection);
        if (connection->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            if (connection->kind == WORKER)
                read_requests(connection);
            else
                read_answer(connection);
        }
    }
}

static bool is_over(uint64_t now) {
    if (options.seconds > 0)
        return now >= end_ns && requests_done >= requests_started;
    return requests_done >= (uint64_t)options.requests;
}

static void report(double wall_seconds) {
    printf("{\"requests\":%llu,\"tokens\":%llu,\"errors\":%llu,\"wall_s\":%.3f,\"req_per_s\":%.1f,\"tok_per_s\":%.0f,",
           (unsigned long long)requests_done, (unsigned long long)tokens_seen, (unsigned long long)errors, wall_seconds,
           (double)requests_done / wall_seconds, (double)tokens_seen / wall_seconds);
    printf("\"first_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f},", quantile_us(&first_tokens, .5),
           quantile_us(&first_tokens, .9), quantile_us(&first_tokens, .99));
    printf("\"token_us\":{\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f},", quantile_us(&all_tokens, .5),
           quantile_us(&all_tokens, .9), quantile_us(&all_tokens, .99), quantile_us(&all_tokens, .999),
           (double)all_tokens.max_ns / 1000.0);
    printf("\"total_us\":{\"p50\":%.1f,\"p99\":%.1f}}\n", quantile_us(&answers, .5), quantile_us(&answers, .99));
}

int main(int count, char **words) {
    parse_options(count, words);
    epoll_fd = epoll_create1(0);
    int listener = listen_as_worker();
    new_connection(listener, LISTENER);
    make_request();
    if (options.serve)
        for (;;)
            wait_for_events(listener, write_tokens());
    end_ns = now_ns() + (uint64_t)(options.seconds * 1e9);
    for (int i = 0; i < options.clients; i++)
        send_request(new_connection(connect_client(), CLIENT));
    uint64_t start_ns = now_ns(), progress_ns = start_ns, progress = 0;
    for (;;) {
        wait_for_events(listener, write_tokens());
        uint64_t now = now_ns();
        if (requests_done + tokens_seen != progress) {
            progress = requests_done + tokens_seen;
            progress_ns = now;
        }
        if (now - progress_ns > STALLED_NS) {
            fprintf(stderr, "stalled\n");
            break;
        }
        if (is_over(now))
            break;
    }
    report((double)(now_ns() - start_ns) / 1e9);
    return 0;
}
