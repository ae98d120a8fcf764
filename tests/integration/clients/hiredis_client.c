/* A load client for the C library hiredis: hiredis_client PORT SECONDS CONNECTIONS */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long seen[20][2][64]; /* key, limited, remaining */
static int errors;

static void fail(const char *what) {
    if (errors++ < 20) printf("ERROR %s\n", what);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int hit(redisContext *c) {
    int n = rand() % 20;
    redisAppendCommand(c, "RL.HIT exact:%d %d %d MS", n, 2 + 3 * n, 40 + 25 * n);
    return n;
}

static void note(int n, const redisReply *r) {
    if (r == NULL || r->type != REDIS_REPLY_ARRAY || r->elements != 5) {
        fail(r != NULL && r->str != NULL ? r->str : "not five integers");
        return;
    }
    long long v[5];
    for (int i = 0; i < 5; i++) v[i] = r->element[i]->integer;
    if (v[0] < 0 || v[0] > 1 || (v[0] == 0) != (v[3] == -1) || v[3] == 0 || v[1] != 2 + 3 * n ||
        v[2] < 0 || v[2] > 63) {
        fail("wrong integers");
        return;
    }
    seen[n][v[0]][v[2]]++;
}

static redisReply *reply(redisContext *c) {
    void *r = NULL;
    if (redisGetReply(c, &r) != REDIS_OK) {
        fail(c->errstr);
        exit(0);
    }
    return r;
}

static void expect(redisContext *c, const char *text) {
    redisReply *r = reply(c);
    if (r->type != REDIS_REPLY_STATUS || strcmp(r->str, text) != 0) fail(text);
    freeReplyObject(r);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int port = atoi(argv[1]), connections = atoi(argv[3]), keys[12];
    double end = now() + atoi(argv[2]);
    redisContext **all = calloc(connections, sizeof *all);
    srand((unsigned)time(NULL));
    for (int i = 0; i < connections; i++) {
        all[i] = redisConnect("127.0.0.1", port);
        if (all[i] == NULL || all[i]->err) {
            fail("no connection");
            return 0;
        }
    }
    for (int turn = 0; now() < end; turn++) {
        for (int i = 0; i < connections; i++) {
            redisContext *c = all[i];
            redisReply *r;
            if (turn % 3 == 0) {
                for (int j = 0; j < 4; j++) {
                    int n = hit(c);
                    r = reply(c);
                    note(n, r);
                    freeReplyObject(r);
                }
            } else if (turn % 3 == 1) {
                for (int j = 0; j < 12; j++) {
                    keys[j] = hit(c);
                    if (j % 3 == 2) redisAppendCommand(c, "PING");
                }
                for (int j = 0; j < 12; j++) {
                    r = reply(c);
                    note(keys[j], r);
                    freeReplyObject(r);
                    if (j % 3 == 2) expect(c, "PONG");
                }
            } else {
                redisAppendCommand(c, "MULTI");
                for (int j = 0; j < 4; j++) keys[j] = hit(c);
                redisAppendCommand(c, "EXEC");
                expect(c, "OK");
                for (int j = 0; j < 4; j++) expect(c, "QUEUED");
                r = reply(c);
                if (r->type != REDIS_REPLY_ARRAY || r->elements != 4) fail("EXEC");
                else for (int j = 0; j < 4; j++) note(keys[j], r->element[j]);
                freeReplyObject(r);
            }
        }
    }
    for (int n = 0; n < 20; n++)
        for (int limited = 0; limited < 2; limited++)
            for (int left = 0; left < 64; left++)
                if (seen[n][limited][left])
                    printf("exact:%d %d %d %d %ld\n", n, limited, 2 + 3 * n, left,
                           seen[n][limited][left]);
    return 0;
}
