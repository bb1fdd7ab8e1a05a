# ask USER QUERY: send a GraphQL document as a user.
ask() {
  curl -s "${GRAPHQL:-http://127.0.0.1:8000/graphql}" -H "Authorization: Bearer $1" \
    -H 'Content-Type: application/json' -d "{\"query\": \"$2\"}"
  echo
}
