/* node.c - trees of nodes that no YAML text stands behind.
 *
 * What other formats say becomes the tree that a specification in YAML would
 * have been read to, so that it goes the same way from there: load.c merges
 * it, value.c reads it, check.c judges it.  Every value keeps its own place.
 */
#include "frontend/frontend_priv.h"

#include <jansson.h>

void node_append(Node *parent, Node *child)
{
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
}

const Node *node_child(const Node *map, const char *name)
{
    const Node *n = map->first;

    while (n && strcmp(n->name, name) != 0)
        n = n->next;
    return n;
}

Node *node_map(Arena *a, Loc loc)
{
    Node *n = arena_new_of(a, Node);

    n->kind = NODE_MAP;
    n->loc = n->name_loc = loc;
    return n;
}

/* The block of that name; made where there is none. */
static Node *block_of(Arena *a, Node *map, const char *name, Loc loc)
{
    Node *n = map->first;

    while (n && strcmp(n->name, name) != 0)
        n = n->next;
    if (n)
        return n;
    n = node_map(a, loc);
    n->name = name;
    node_append(map, n);
    return n;
}

Node *node_list(Arena *a, Loc loc)
{
    Node *n = node_map(a, loc);

    n->kind = NODE_LIST;
    return n;
}

Node *node_scalar(Arena *a, const char *text, Loc loc)
{
    Node *n = arena_new_of(a, Node);

    n->kind = NODE_SCALAR;
    n->text = text;
    n->loc = n->name_loc = loc;
    return n;
}

bool text_is_writable(const char *text)
{
    json_t *utf8 = json_string(text);
    bool ok = utf8 && !strstr(text, "\xef\xbf\xbe") &&
              !strstr(text, "\xef\xbf\xbf") && !strstr(text, "\xef\xbb\xbf");

    for (const unsigned char *c = (const unsigned char *)text; ok && *c; c++)
        ok = c[0] != 0xc2 || c[1] >= 0xa0 || c[1] == 0x85;
    json_decref(utf8);
    return ok;
}

Node *node_text(Arena *a, const char *text, Loc loc)
{
    Node *n = node_scalar(a, text, loc);

    n->quoted = true;
    return n;
}

void node_put_node(Arena *a, Node *root, const char *path, Node *value)
{
    const char *name = path_name(path);
    Node *block = root;

    for (const char *at = path; at < name; at += strcspn(at, ".") + 1)
        block = block_of(a, block, arena_strndup(a, at, strcspn(at, ".")),
                         value->loc);
    value->name = name;
    node_append(block, value);
}

void node_put(Arena *a, Node *root, const char *path, const char *text, Loc loc)
{
    node_put_node(a, root, path, node_scalar(a, text, loc));
}
